use proptest::prelude::ProptestConfig;

/// With how many random cases a property is tried: so many in every build, and with PROPTEST_CASES in the environment that many. Nothing is
/// written down: a failure prints its case.
pub fn cases(by_default: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok();
    let asked = asked.map(|n| n.parse().expect("PROPTEST_CASES is a number"));
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(asked.unwrap_or(by_default))
    }
}
