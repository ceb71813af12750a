//! Counts looks at members, for the tests of costs.

/// One look at a member.
pub(super) fn look() {
    #[cfg(test)]
    super::tests::costs::LOOKS.set(super::tests::costs::LOOKS.get() + 1);
}
