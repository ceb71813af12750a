"""What the driver submits to real Ray: one task for each node, which says where it ran."""

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@ray.remote(num_cpus=0)
def where() -> str:
    return ray.util.get_node_ip_address()


ray.init(log_to_driver=False)
places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]]
print("tasks ran on", *sorted(ray.get([where.options(scheduling_strategy=place).remote() for place in places])))
