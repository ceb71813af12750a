//! The code that runs on a node, beside the job: the place of a process in its job, the checks of its
//! manifest, and the clients of a server.
//!
//! | module | what it is for |
//! |---|---|
//! | [`client`] | a client of any TCPStore, and of the HTTP API |
//! | [`doctor`] | checks that say why a job would hang, before it does |
//! | [`endpoint`] | where a server is, as people and platforms write it |
//! | [`launch`] | which rank a process has in its job, from its environment |
//! | [`makers`] | what makes pods in Kubernetes, and what each maker gives them |
//! | [`relay`] | the server on this node's loopback: its clients outlive breaks of the network |
//! | [`shell`] | which commands a shell script runs, as far as the text shows it |

pub mod client;
pub mod doctor;
pub mod endpoint;
pub mod launch;
pub mod makers;
pub mod relay;
pub mod shell;
