//! Chains of links, and who must refuse which.

mod hard_cases;
mod mail;
mod naive;
mod support;
mod two_verifiers;
mod uses;
