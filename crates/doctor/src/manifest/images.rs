//! What the name of an image says: whether it is one, and what the image certainly lacks.

/// The parts of an image's name, without its host.
pub(crate) struct Image<'i> {
    base: &'i str,
    tag: &'i str,
}

impl<'i> Image<'i> {
    pub(crate) fn of(name: &'i str) -> Self {
        let name = name.trim_start_matches("docker.io/").trim_start_matches("library/");
        let (base, tag) = name.split_once([':', '@']).unwrap_or((name, ""));
        Self { base, tag }
    }

    /// Whether it is a language or a system, and nothing else.
    fn is_plain(&self) -> bool {
        const PLAIN: [&str; 7] = ["python", "debian", "ubuntu", "alpine", "busybox", "bash", "rockylinux"];
        PLAIN.contains(&self.base)
    }

    /// Whether it has no program of its user's: who trains brings it.
    pub(crate) fn is_bare(&self) -> bool {
        self.is_plain() || self.base == "pytorch/pytorch"
    }

    /// Whether it has no such launcher. torchrun came with PyTorch 1.10.
    pub(crate) fn lacks(&self, program: &str) -> bool {
        const LAUNCHERS: [&str; 6] = ["ray", "torchrun", "accelerate", "deepspeed", "mpirun", "vllm"];
        let mut release = self.tag.split('.').map(str::parse::<u32>);
        let is_older = matches!((release.next(), release.next()), (Some(Ok(1)), Some(Ok(0..10))));
        let of_pytorch = self.base == "pytorch/pytorch" && program == "torchrun" && is_older;
        self.is_plain() && LAUNCHERS.contains(&program) || of_pytorch
    }
}

/// Whether the kubelet takes a text for the name of an image: the grammar of `distribution/reference`.
pub(crate) fn is_name(text: &str) -> bool {
    let name = text.split_once('@').map_or(text, |(name, _)| name);
    let is_host = |part: &str| {
        part == "localhost" || part.contains(['.', ':']) || part.contains(|c: char| c.is_ascii_uppercase())
    };
    let (host, rest) = match name.split_once('/') {
        Some((host, rest)) if is_host(host) => (Some(host), rest),
        _ => (None, name),
    };
    let (path, tag) = rest.split_once(':').map_or((rest, None), |(path, tag)| (path, Some(tag)));
    let is_tag = |tag: &str| {
        let is_begin = |c: char| c.is_ascii_alphanumeric() || c == '_';
        tag.len() < 129
            && tag.starts_with(is_begin)
            && tag.chars().all(|c| is_begin(c) || c == '.' || c == '-')
    };
    path.split('/').all(is_component) && tag.is_none_or(is_tag) && host.is_none_or(is_domain)
}

fn is_component(part: &str) -> bool {
    let is_own = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator = |it: &str| matches!(it, "" | "." | "_" | "__") || it.chars().all(|c| c == '-');
    part.starts_with(is_own) && part.ends_with(is_own) && part.split(is_own).all(is_separator)
}

fn is_domain(text: &str) -> bool {
    let (host, port) = text.split_once(':').unwrap_or((text, "0"));
    let is_label = |label: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty() && label.chars().all(is_part) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.starts_with('[') || host.split('.').all(is_label) && port.chars().all(|c| c.is_ascii_digit())
}
