//! A directory that is not the one that the replica had last.

use super::recoveries as new;
use super::*;

/// A replica that has recovered in one directory recovers when another one is there again under its name, and goes back to no log of that; one with the same
/// directory does not, and where there is none it is left to say so. A supervisor that is killed meanwhile changes nothing of it.
#[tokio::test]
async fn a_directory_that_comes_back_is_not_believed() {
    let directory = tempfile::tempdir().unwrap();
    let (place, data) = (directory.path(), directory.path().join("data"));
    let (away, note) = (place.join("away"), place.join("ground"));
    let lists = format!(
        "echo $* >> {0}/starts; ls {0}/data >> {0}/starts",
        place.display()
    );
    let supervised = |recovers| children_with((None, Some(note.clone())), &lists, place, recovers);
    let starts = || std::fs::read_to_string(place.join("starts")).unwrap_or_default();
    let begins = || drop(std::fs::remove_file(place.join("starts")));
    let was_started = |_: &Recoveries, _: &Children| starts().contains("ground");
    let fill = || {
        std::fs::create_dir(data.join("log")).unwrap();
        std::fs::write(data.join("group-id"), b"").unwrap();
    };
    std::fs::create_dir(&data).unwrap();
    fill();
    say(place, Some(&recovered()));
    for _ in 0..2 {
        let (mut children, mut recoveries) = (supervised(None), new(place));
        until(&mut recoveries, &mut children, was_started).await;
        assert!(!starts().contains("--recover") && !recoveries.is_busy());
        children.hurry(ID);
        begins();
    }
    // The disk is away, and the replica recovers on another.
    std::fs::rename(&data, &away).unwrap();
    let (mut children, mut recoveries_there) = (supervised(None), new(place));
    until(&mut recoveries_there, &mut children, |_, _| {
        !starts().is_empty()
    })
    .await;
    assert!(
        !starts().contains("--recover"),
        "it is left to say that nothing is there"
    );
    assert!(!recoveries_there.is_busy());
    recoveries_there
        .begin(ID, false, &reports(), &mut children)
        .unwrap();
    children.hurry(ID);
    until(&mut recoveries_there, &mut children, |r, _| !r.is_busy()).await;
    fill();
    children.hurry(ID);
    begins();
    // It is back.
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&away, &data).unwrap();
    drop(supervised(None));
    let (mut children, mut recoveries) = (supervised(None), new(place));
    let mut told = Vec::new();
    for _ in 0..3_000 {
        told.extend(children.look_after().unwrap());
        told.extend(recoveries.look(&Reports::new(), &mut children));
        if recoveries.records.of(ID).begun {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let told = told.join("\n");
    assert!(
        told.contains("ALARM") && told.contains("is not the directory"),
        "{told}"
    );
    until(&mut recoveries, &mut children, |r, _| !r.is_busy()).await;
    assert!(
        starts().contains("--recover") && !starts().contains("log"),
        "{}",
        starts()
    );
    fill();
    children.hurry(ID);
    begins();
    let (mut children, mut recoveries) = (supervised(None), new(place));
    until(&mut recoveries, &mut children, was_started).await;
    assert!(!starts().contains("--recover") && starts().contains("log"));
    children.hurry(ID);
}
