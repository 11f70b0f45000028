//! A volume as a directory of this machine.
