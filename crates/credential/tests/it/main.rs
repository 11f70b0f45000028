//! Chains of links, and who must refuse which.

#[path = "../../../wire/tests/it/support/cases.rs"]
mod cases;
mod hard_cases;
mod mail;
mod naive;
mod support;
mod two_verifiers;
mod uses;
