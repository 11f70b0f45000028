//! The search: all states of the group that can be reached, breadth first.
//!
//! What was said can be heard at any later time, as often as one likes, or never. So a state of the group is one state for each correct
//! replica: what is on the way follows from what each of them has said, and the faulty replica's words are always there.
//!
//! **Steps.** A replica that hears a word and says nothing has done nothing that another could see, and it could have heard it later.
//! So each run is, for every replica, one in which it hears words only just before it shows something for them; a step of the
//! search is that whole: the words that are needed, and what it then shows (says, commits, executes, enters or leaves a view).
//! Words that are not needed for a step are left for later if that comes to the same, which is tried out on the core
//! each time ([`Explorer::is_needless`]). And only words of one subject are tried together; that nothing is lost by this is tested
//! against a search without it.
//!
//! **Reduced** scenarios have their steps in one order where the others lead to nothing else ([`Phase`]). Nobody who has left the first
//! view says what somebody needs who is still there, but for what makes that one leave, which it can do by itself. So whatever is done in the
//! first view can be done before anything is in the next; and who does nothing more there can as well have left, and said so. What a replica heard for
//! its last step it can hear again, so that it is as if it had not heard it ([`Agreement::forget_heard`](quorate_agreement::Agreement::forget_heard)).
//! And in the last view a step that will be possible whatever the others do, and keeps nobody from anything, is the only one ([`Explorer::is_due`]).
//! Tests compare with searches of scenarios that are not reduced.

use crate::cast::Cast;
use crate::checks::{Violation, of_all};
use crate::local::{Event, Local, Node, NodeId};
use crate::said::Which;
use crate::scenario::Scenario;
use crate::words::{Book, Map, SetId, Spoken, Subject, Word, WordId};
use quorate_wire::message::PeerMessage;
use quorate_wire::{Digest, ReplicaId, Seq, View};

/// One state for each correct replica.
pub type State = [NodeId; 3];

/// The most states of one replica: three numbers of so many bits are one of 64.
const NODE_BITS: u32 = 21;

/// How to search.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// States of the group after which to stop.
    pub most: usize,
    /// Whether to remember how each state was reached, to tell it.
    pub trace: bool,
    /// Whether words of different subjects are tried together as well: slower, and should find the same.
    pub all_subjects: bool,
    /// How many replicas to keep, of each, that came to known states in other ways: for [`Explorer::verify`].
    pub keep: usize,
    /// Whether to compute [`Counts::said`], and of which words.
    pub said: Option<Which>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            most: usize::MAX,
            trace: false,
            all_subjects: false,
            keep: 0,
            said: None,
        }
    }
}

/// What a search came upon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// States of the group.
    pub states: u64,
    /// Steps between them.
    pub transitions: u64,
    /// The number of steps to the farthest.
    pub depth: u64,
    /// States in which nothing can happen any more.
    pub ends: u64,
    /// States of each correct replica.
    pub locals: Vec<usize>,
    /// Words that were said.
    pub words: usize,
    /// States from which it was seen that the group comes to its end.
    pub live: u64,
    /// Whether all states were seen.
    pub complete: bool,
    /// If asked for: what the group may have said and done, how many ways there are, and a number that stands for them.
    pub said: (usize, u128),
}

/// A search under way.
#[derive(Debug)]
pub struct Explorer {
    cast: Cast,
    book: Book,
    ids: Vec<ReplicaId>,
    locals: Vec<Local>,
    options: Options,
    /// What the faulty replica can always say; where the scenario is reduced, once the first view is left.
    vocabulary: SetId,
    /// What of that is of use in the first view alone.
    early: SetId,
    /// The same, with the NEW-VIEWs that it can make of what the others have said.
    with_new_views: Map<[SetId; 3], SetId>,
    /// The VIEW-CHANGEs and so on in what one replica has said.
    changes: Map<SetId, SetId>,
}

fn pack(state: State) -> u64 {
    state.iter().fold(0, |n, node| {
        assert!(
            *node >> NODE_BITS == 0,
            "too many states of one replica: make the scenario smaller"
        );
        n << NODE_BITS | u64::from(*node)
    })
}

fn unpack(number: u64) -> State {
    let mask = (1 << NODE_BITS) - 1;
    [2, 1, 0].map(|i| (number >> (i * NODE_BITS) & mask) as NodeId)
}

/// What may happen in a state: all, unless what is done in the first view is to be done before all else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Any,
    /// All are in the first view, and what they do there is done; or all leave it.
    First,
    /// Some have left it. Those who do not by themselves follow the others.
    Leaving,
}

/// Who saw which state first: it, or nothing where that is not asked for.
#[derive(Debug, Default)]
struct Seen {
    states: Map<u64, ()>,
    from: Map<u64, u64>,
}

impl Explorer {
    /// A search that has not begun.
    ///
    /// # Errors
    /// Where the first state is wrong already.
    pub fn new(scenario: &Scenario, options: Options) -> Result<Explorer, Violation> {
        let mut book = Book::default();
        let cast = Cast::new(scenario, &mut book);
        let ids = cast.correct();
        let words = cast.vocabulary(&mut book);
        let mut vocabulary = book.set(words);
        let early = book.up_to(vocabulary, View(0));
        if scenario.reduced {
            assert!(scenario.last_view == View(1) && scenario.look_only && !scenario.checkpoints);
            vocabulary = book.outliving(vocabulary, View(0));
        }
        let locals = ids
            .iter()
            .map(|id| Local::new(*id, options.keep, &cast, &mut book));
        let locals = locals.collect::<Result<Vec<_>, _>>()?;
        Ok(Explorer {
            cast,
            book,
            ids,
            locals,
            options,
            vocabulary,
            early,
            with_new_views: Map::default(),
            changes: Map::default(),
        })
    }

    /// Searches until all is seen, or something does not hold.
    ///
    /// # Errors
    /// What does not hold.
    pub fn run(&mut self) -> Result<Counts, Violation> {
        let mut seen = Seen::default();
        let mut counts = Counts::default();
        let mut frontier = vec![pack([0; 3])];
        seen.states.insert(frontier[0], ());
        counts.complete = true;
        while !frontier.is_empty() && counts.complete {
            let mut next = Vec::new();
            for number in std::mem::take(&mut frontier) {
                let state = unpack(number);
                let steps = self.steps(state);
                let steps = steps.map_err(|violation| self.told(violation, &seen, number))?;
                counts.transitions += steps.len() as u64;
                let is_end = steps.is_empty();
                counts.ends += u64::from(is_end);
                for after in steps {
                    let its_number = pack(after);
                    if seen.states.insert(its_number, ()).is_some() {
                        continue;
                    }
                    if self.options.trace {
                        seen.from.insert(its_number, number);
                    }
                    let checked = self.check(state, after);
                    checked.map_err(|violation| self.told(violation, &seen, its_number))?;
                    next.push(its_number);
                }
                if self.is_chosen(number, is_end, counts.live) {
                    counts.live += 1;
                    let ended = crate::live::run(&self.cast, &self.book, &self.nodes(state));
                    ended.map_err(|violation| self.told(violation, &seen, number))?;
                }
                counts.complete &= seen.states.len() <= self.options.most;
                if !counts.complete {
                    break;
                }
            }
            counts.depth += u64::from(!next.is_empty());
            frontier = next;
        }
        if let Some(which) = self.options.said {
            let states = seen.states.keys();
            let said = states.map(|number| self.said(unpack(*number)));
            counts.said = which.of_all(said.collect(), &self.book);
        }
        counts.states = seen.states.len() as u64;
        counts.locals = self.locals.iter().map(Local::len).collect();
        counts.words = self.book.len();
        Ok(counts)
    }

    /// Sees that states that were taken for one are one, as far as replicas were kept. Gives the number of comparisons.
    ///
    /// # Errors
    /// Two that differ.
    pub fn verify(&mut self) -> Result<usize, Violation> {
        let (cast, book) = (&self.cast, &mut self.book);
        let locals = self.locals.iter_mut();
        locals.map(|local| local.verify(cast, book)).sum()
    }

    /// Whether to see that the group comes to its end from a state.
    fn is_chosen(&self, number: u64, is_end: bool, so_far: u64) -> bool {
        let every = self.cast.scenario.live_every;
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        every > 0 && (mixed.is_multiple_of(every) || (is_end && so_far < 100))
    }

    fn nodes(&self, state: State) -> [&Node; 3] {
        [0, 1, 2].map(|i| self.locals[i].get(state[i]))
    }

    fn said(&self, state: State) -> [SetId; 3] {
        self.nodes(state).map(|node| node.said)
    }

    fn check(&self, before: State, after: State) -> Result<(), Violation> {
        let (old, new) = (self.said(before), self.said(after));
        match old == new {
            true => Ok(()),
            false => of_all(&new, &self.cast, &self.book),
        }
    }

    /// All states that one step leads to.
    fn steps(&mut self, state: State) -> Result<Vec<State>, Violation> {
        let said = self.said(state);
        let phase = self.phase(state);
        let faulty = match phase {
            Phase::First => self.early,
            _ => self.faulty_words(said),
        };
        let mut out = Vec::new();
        if phase == Phase::First
            && let Some(left) = self.all_leave(state)?
        {
            out.push(left);
        }
        let (mut seen, mut due) = (Vec::new(), None);
        for i in 0..3 {
            let mut heard: Vec<SetId> = (0..3).filter(|j| *j != i).map(|j| said[j]).collect();
            heard.push(faulty);
            for node in self.steps_of(i, state[i], phase, &heard)? {
                if self.cast.scenario.look_only && !self.tells(i, state[i], node) {
                    seen.push(self.locals[i].get(node).said);
                    continue;
                }
                let mut after = state;
                after[i] = node;
                if phase == Phase::Any && self.is_due(i, state[i], node) {
                    due.get_or_insert(after);
                }
                out.push(after);
            }
        }
        // What can be done at any time and keeps nobody from anything is done at once.
        if let Some(after) = due {
            out = vec![after];
        }
        if !seen.is_empty() {
            // What one can do the others can't prevent: all of it may come about in one run.
            seen.extend(said);
            of_all(&seen, &self.cast, &self.book)?;
        }
        Ok(out)
    }

    fn phase(&self, state: State) -> Phase {
        if !self.cast.scenario.reduced {
            return Phase::Any;
        }
        let nodes = self.nodes(state);
        let stay = nodes.iter().filter(|node| node.view == View(0)).count();
        match stay {
            0 => Phase::Any,
            3 => Phase::First,
            _ => Phase::Leaving,
        }
    }

    /// All leave the first view that do so by themselves, if any does: who has executed all that it waits for does not.
    fn all_leave(&mut self, state: State) -> Result<Option<State>, Violation> {
        let mut left = state;
        for (i, node) in left.iter_mut().enumerate() {
            let after = self.step(i, *node, Event::TimeOut)?;
            if self.locals[i].get(after).view > View(0) {
                *node = after;
            }
        }
        Ok((left != state).then_some(left))
    }

    /// Whether a step tells the others something, or moves the replica; in a reduced scenario without committing, since it can do the same and
    /// commit later.
    fn tells(&self, i: usize, before: NodeId, after: NodeId) -> bool {
        let mut news = self.news(i, before, after);
        let commits = |(_, s): (WordId, &Spoken)| matches!(s.word, Word::Committed(..));
        if self.cast.scenario.reduced && news.any(commits) {
            return false;
        }
        let mut news = self.news(i, before, after);
        self.locals[i].moves(before, after)
            || news.any(|(_, spoken)| matches!(spoken.word, Word::Message(_)))
    }

    fn news(
        &self,
        i: usize,
        before: NodeId,
        after: NodeId,
    ) -> impl Iterator<Item = (WordId, &Spoken)> {
        let [before, after] = [before, after].map(|node| self.locals[i].get(node).said);
        let said = self.book.spoken(after);
        said.filter(move |(word, _)| !self.book.has(before, *word))
    }

    /// Whether a step in the last view, of a reduced scenario, keeps nobody from anything, and will be possible whatever the others do: to
    /// say COMMIT; and where the view's primary is correct, to enter the view that it has started, and to vote there.
    fn is_due(&self, i: usize, before: NodeId, after: NodeId) -> bool {
        let Scenario {
            reduced,
            last_view,
            faulty,
            ..
        } = self.cast.scenario;
        let (a, b) = (self.locals[i].get(before), self.locals[i].get(after));
        if !reduced || a.view != last_view || b.view != last_view || !b.active {
            return false;
        }
        let primary = self.cast.quorum.primary(last_view);
        if primary != faulty {
            return a.active || self.ids[i] != primary;
        }
        let is_commit = |s: &Spoken| match &s.word {
            Word::Message(PeerMessage::Commit(m)) => m.view == last_view,
            _ => false,
        };
        a.active
            && !self.locals[i].moves(before, after)
            && self.news(i, before, after).all(|(_, s)| is_commit(s))
    }

    /// What the faulty replica can say once the others have said so much.
    fn faulty_words(&mut self, said: [SetId; 3]) -> SetId {
        let scenario = &self.cast.scenario;
        let led = |view: u64| self.cast.quorum.primary(quorate_wire::View(view)) == scenario.faulty;
        if !(1..=scenario.last_view.0).any(led) {
            return self.vocabulary;
        }
        let changes = said.map(|set| self.changes_in(set));
        if let Some(set) = self.with_new_views.get(&changes) {
            return *set;
        }
        let mut words = self.book.words_of(self.vocabulary).to_vec();
        for view in (1..=self.cast.scenario.last_view.0).map(quorate_wire::View) {
            words.extend(self.cast.new_views(view, &changes, &mut self.book));
        }
        let set = self.book.set(words);
        self.with_new_views.insert(changes, set);
        set
    }

    fn changes_in(&mut self, said: SetId) -> SetId {
        if let Some(set) = self.changes.get(&said) {
            return *set;
        }
        let spoken = self.book.spoken(said);
        let changes =
            spoken.filter(|(_, s)| matches!(s.word, Word::Message(PeerMessage::ViewChange(_))));
        let changes: Vec<_> = changes.map(|(word, _)| word).collect();
        let set = self.book.set(changes);
        self.changes.insert(said, set);
        set
    }

    /// What one replica may show next, having heard what it needs of what was said.
    fn steps_of(
        &mut self,
        i: usize,
        node: NodeId,
        phase: Phase,
        heard: &[SetId],
    ) -> Result<Vec<NodeId>, Violation> {
        let mut search = Search {
            start: node,
            heard,
            out: Vec::new(),
            quiet: vec![node],
            path: Vec::new(),
        };
        let its = self.locals[i].get(node);
        let (view, last) = (its.view, self.cast.scenario.last_view);
        if view < last && phase == Phase::Any {
            let after = self.step(i, node, Event::TimeOut)?;
            if self.locals[i].shows(node, after) {
                search.out.push(after);
            }
        }
        let subject = match phase {
            Phase::Leaving if view > View(0) => return Ok(search.out),
            Phase::Leaving => Subject::Views,
            Phase::First | Phase::Any => Subject::Any,
        };
        self.hear(i, node, subject, &mut search)?;
        Ok(search.out)
    }

    fn step(&mut self, i: usize, node: NodeId, event: Event) -> Result<NodeId, Violation> {
        self.locals[i].step(node, event, &self.cast, &mut self.book)
    }

    fn hear(
        &mut self,
        i: usize,
        node: NodeId,
        subject: Subject,
        search: &mut Search<'_>,
    ) -> Result<(), Violation> {
        if let Some(target) = self.locals[i].get(node).fetching
            && self.is_held(target, search.heard)
        {
            self.follow(i, node, Event::Fetched, subject, search)?;
        }
        for set in search.heard {
            let words = match subject {
                Subject::Any => self.locals[i].effective(node, *set, &self.cast, &mut self.book)?,
                _ => self.book.about(*set, subject),
            };
            for word in words.iter() {
                let its = self.book.get(*word).subject;
                let together = match self.options.all_subjects {
                    true => Some(Subject::Any),
                    false => subject.with(its),
                };
                if let Some(subject) = together {
                    self.follow(i, node, Event::Hears(*word), subject, search)?;
                }
            }
        }
        Ok(())
    }

    fn follow(
        &mut self,
        i: usize,
        node: NodeId,
        event: Event,
        subject: Subject,
        search: &mut Search<'_>,
    ) -> Result<(), Violation> {
        let after = self.step(i, node, event)?;
        if after == node {
            return Ok(());
        }
        if self.locals[i].shows(search.start, after) {
            if !search.out.contains(&after) && !self.is_needless(i, after, event, search)? {
                search.out.push(after);
            }
        } else if !search.quiet.contains(&after) {
            search.quiet.push(after);
            search.path.push(event);
            self.hear(i, after, subject, search)?;
            search.path.pop();
        }
        Ok(())
    }

    /// Whether one of the words that were heard could as well have been heard after the step: without it the replica shows
    /// something as well, and is in the same state once it has heard it.
    fn is_needless(
        &mut self,
        i: usize,
        after: NodeId,
        last: Event,
        search: &Search<'_>,
    ) -> Result<bool, Violation> {
        for left_out in 0..search.path.len() {
            let mut node = search.start;
            for (at, event) in search.path.iter().enumerate() {
                if at != left_out {
                    node = self.step(i, node, *event)?;
                }
            }
            node = self.step(i, node, last)?;
            if self.locals[i].shows(search.start, node)
                && self.step(i, node, search.path[left_out])? == after
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether some correct replica has said that it has a state.
    fn is_held(&self, target: (Seq, Digest), heard: &[SetId]) -> bool {
        let mut spoken = heard.iter().flat_map(|set| self.book.spoken(*set));
        spoken.any(|(_, s)| match &s.word {
            Word::Message(PeerMessage::Checkpoint(m)) => {
                s.by != self.cast.scenario.faulty && (m.seq, m.root) == target
            }
            _ => false,
        })
    }

    /// A violation with the way to it, if that was remembered.
    fn told(&self, mut violation: Violation, seen: &Seen, last: u64) -> Violation {
        let mut way = vec![last];
        while let Some(before) = way.last().and_then(|number| seen.from.get(number)) {
            way.push(*before);
        }
        way.reverse();
        for pair in way.windows(2) {
            let (before, after) = (unpack(pair[0]), unpack(pair[1]));
            for i in (0..3).filter(|i| before[*i] != after[*i]) {
                violation.trace.push(self.tell_step(i, before[i], after[i]));
            }
        }
        violation
    }

    fn tell_step(&self, i: usize, before: NodeId, after: NodeId) -> String {
        let (a, b) = (self.locals[i].get(before), self.locals[i].get(after));
        let old = self.book.words_of(a.said);
        let new = self.book.words_of(b.said);
        let news = new.iter().filter(|word| !old.contains(word));
        let mut words: Vec<String> = news.map(|word| self.book.tell(*word)).collect();
        if (a.view, a.active) != (b.view, b.active) {
            let how = if b.active { "is in" } else { "waits for" };
            words.push(format!("{:?} {how} {:?}", self.ids[i], b.view));
        }
        words.join("; ")
    }
}

/// The search for what one replica may show next.
struct Search<'a> {
    start: NodeId,
    heard: &'a [SetId],
    /// Where it has shown something.
    out: Vec<NodeId>,
    /// Where it has not.
    quiet: Vec<NodeId>,
    /// What it has heard on the way.
    path: Vec<Event>,
}
