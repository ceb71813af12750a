//! Ranks that are started again find the addresses of their predecessors in the store, and wait for them.

use super::prelude::*;

pub(super) const RULE: Rule = Rule {
    id: "c10d-restarts",
    sees: "WARN: c10d with `--max-restarts`, or `--nnodes=MIN:MAX`, without \
           `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`",
    examples: ["c10d-restarts.yaml", "good-job-c10d.yaml"],
    find: Find::Torchrun(find),
};

fn find(call: &Call<'_>) -> Option<Check> {
    // A variable outside these files may set it.
    let is_visible = !call.launch.command.open && !call.launch.by_rallypoint;
    let image = call.container.value.get("image").and_then(Value::as_str).unwrap_or_default();
    call.in_command(RULE.id).filter(|_| is_visible && !is_old(image))
}

/// Whether the tag of an image tells a torch before 2.5.
fn is_old(image: &str) -> bool {
    let Some((name, tag)) = image.rsplit_once(':') else { return false };
    let numbers: Vec<u32> = tag.split(['.', '-', '_']).map_while(|part| part.parse().ok()).take(2).collect();
    let before: [u32; 2] = match name.rsplit_once('/') {
        Some((owner, "pytorch")) if owner.ends_with("nvidia") => [24, 7],
        // Its releases after 1 are of 2024, with newer ones.
        Some((_, "bionemo-framework")) => [2, 0],
        Some((_, "pytorch" | "pytorch-training")) => [2, 5],
        _ => return false,
    };
    numbers.len() == 2 && numbers.as_slice() < before.as_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_an_image_tells_an_old_torch() {
        for (image, old) in [
            ("pytorch/pytorch:2.4.1-cuda12.4-cudnn9-runtime", true),
            ("pytorch/pytorch:2.5.0-cuda12.4-cudnn9-runtime", false),
            ("nvcr.io/nvidia/pytorch:23.10-py3", true),
            ("nvcr.io/nvidia/pytorch:24.10-py3", false),
            ("nvcr.io/nvidia/clara/bionemo-framework:1.2", true),
            ("registry.example/pytorch:latest", false),
            ("registry.example/train:1.0", false),
        ] {
            assert_eq!(is_old(image), old, "{image}");
        }
    }
}
