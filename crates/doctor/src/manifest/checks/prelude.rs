//! What most checks use.

pub(crate) use serde_json::Value;

pub(crate) use super::super::super::{Check, Verdict};
pub(crate) use super::super::Manifests;
pub(crate) use super::super::container::Container;
pub(crate) use super::super::launch::{Launch, Told};
pub(crate) use super::super::meeting::{Call, first_pod};
pub(crate) use super::super::names::{Taken, Target, is_headless, is_selected, resolve, selector, takes};
pub(crate) use super::super::objects::{
    Object, is_localhost, is_placeholder, is_unfilled, list, quantity, texts,
};
pub(crate) use super::super::pods::{Pods, Step};
pub(crate) use super::{Find, Rule};
pub(crate) use crate::Location;
pub(crate) use rallypoint_node::launch::{
    Backend, Called, Grammar, Role, Starter, Starts, Tool, is_python_file,
};
pub(crate) use rallypoint_node::makers::{Maker, When, env_of_field};
pub(crate) use rallypoint_protocol::ids::{Nodes, counted};
pub(crate) use rallypoint_shell::{Command, Source, Text, basename};
