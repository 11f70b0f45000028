//! Messages and their forms.

mod canonical;
mod evidence;
mod evidence_of_state;
mod frames;
mod support;
