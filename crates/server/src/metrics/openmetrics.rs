//! Turns Prometheus' older text into OpenMetrics. They differ in four points: a counter's family is named
//! without `_total`, quotes in a help text are escaped, bucket bounds are floats, and the text has an end
//! mark.

use std::collections::HashSet;

/// The content type of [`of_text`]'s text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Turns Prometheus text into OpenMetrics.
pub fn of_text(text: &str) -> String {
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: HashSet<&str> = types.filter_map(|line| line.strip_suffix(" counter")).collect();
    let family = |name: &str| {
        let bare = name.strip_suffix("_total").filter(|_| counters.contains(name));
        bare.unwrap_or(name).to_owned()
    };
    let mut made = String::with_capacity(text.len().saturating_add(64));
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            made.extend(["# HELP ", &family(name), " ", &help.replace('"', "\\\"")]);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            made.extend(["# TYPE ", &family(name), " ", kind]);
        } else {
            push_sample(&mut made, line);
        }
        made.push('\n');
    }
    made.push_str("# EOF\n");
    made
}

/// Appends a sample, with `le="1"` as `le="1.0"`. Only buckets have the label `le`, as their last one.
fn push_sample(made: &mut String, line: &str) {
    let bound = line.rsplit_once("le=\"").and_then(|(before, rest)| {
        let (bound, after) = rest.split_once('"')?;
        let whole = before.contains("_bucket{") && bound.bytes().all(|byte| byte.is_ascii_digit());
        whole.then_some((before, bound, after))
    });
    match bound {
        Some((before, bound, after)) => made.extend([before, "le=\"", bound, ".0\"", after]),
        None => made.push_str(line),
    }
}

#[cfg(test)]
mod tests {
    use super::of_text;

    #[test]
    fn the_four_differences() {
        let text = "# HELP a_total Says \"a\".\n# TYPE a_total counter\na_total{run=\"le=\\\"1\"} 2\n\
                    # HELP b Of b.\n# TYPE b histogram\nb_bucket{op=\"x\",le=\"0.5\"} 1\n\
                    b_bucket{op=\"x\",le=\"1\"} 1\nb_bucket{op=\"x\",le=\"+Inf\"} 1\nb_sum 0.1\nb_count 1\n\
                    # HELP c_total Of c.\n# TYPE c_total gauge\nc_total 1\n";
        assert_eq!(
            of_text(text),
            "# HELP a Says \\\"a\\\".\n# TYPE a counter\na_total{run=\"le=\\\"1\"} 2\n# HELP b Of b.\n\
             # TYPE b histogram\nb_bucket{op=\"x\",le=\"0.5\"} 1\nb_bucket{op=\"x\",le=\"1.0\"} 1\n\
             b_bucket{op=\"x\",le=\"+Inf\"} 1\nb_sum 0.1\nb_count 1\n# HELP c_total Of c.\n\
             # TYPE c_total gauge\nc_total 1\n# EOF\n"
        );
    }
}
