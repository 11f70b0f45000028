//! Messages and their forms.

mod canonical;
#[path = "support/cases.rs"]
mod cases;
mod evidence;
mod evidence_of_state;
mod frames;
mod support;
