//! `quorate keygen`.

use anyhow::Result;
use quorate_net::keys;

use crate::args::Keygen;

pub fn run(args: &Keygen) -> Result<()> {
    let key = keys::generate()?;
    keys::save(&args.file, &key)?;
    let public = key.public().to_string();
    if args.json {
        let file = args.file.display().to_string();
        tell!(
            "{}",
            serde_json::json!({ "file": file, "public_key": public })
        );
    } else {
        tell!("{public}");
        say!(
            "The secret half is in {}: keep it to yourself.",
            args.file.display()
        );
    }
    Ok(())
}
