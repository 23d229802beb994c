//! Grammars that wait for a trigger.

use super::*;
use llama_batch::core::SamplingParams;
use llama_batch::sampling::Sampler;

fn lazy(triggers: &[&str]) -> Matcher {
    let grammar = compile(&gbnf("root ::= \"<t>\" [a-c]+ \"</t>\"")).unwrap();
    Matcher::lazy(&grammar, triggers.iter().map(ToString::to_string).collect(), true).unwrap()
}

fn say(matcher: &mut Matcher, text: &str) -> Result<(), String> {
    greedy(text.as_bytes()).into_iter().try_for_each(|token| {
        let allowed = matcher.allows(token)?;
        let accepted = matcher.accept(token);
        assert_eq!(allowed, accepted.is_ok());
        accepted
    })
}

#[test]
fn everything_is_allowed_until_the_trigger_and_the_grammar_from_its_start_on() {
    let mut matcher = lazy(&["<t>"]);
    assert_eq!(left(&mut matcher).unwrap().len(), N_TOKENS);
    say(&mut matcher, "Hello <t <<t").unwrap();
    assert_eq!(left(&mut matcher).unwrap().len(), N_TOKENS);
    assert!(matcher.allows(EOG[0]).unwrap() && matcher.allows(CONTROL).unwrap());
    say(&mut matcher, ">").unwrap();
    assert!(!matcher.allows(Token::from(b'<')).unwrap() && !matcher.allows(EOG[0]).unwrap());
    say(&mut matcher, "abc</t>").unwrap();
    assert!(matcher.is_over());
    assert_eq!(left(&mut matcher).unwrap(), EOG);
}

#[test]
fn an_answer_without_the_trigger_ends_when_it_likes() {
    let mut matcher = lazy(&["<t>"]);
    say(&mut matcher, "zzz").unwrap();
    matcher.accept(EOG[0]).unwrap();
    assert!(matcher.is_over());
    assert!(matcher.accept(Token::from(b'a')).is_err());
}

#[test]
fn a_token_that_goes_on_past_the_trigger_is_fed_from_its_start() {
    let grammar = compile(&gbnf("root ::= \"ab\" \"d\"")).unwrap();
    let mut matcher = Matcher::lazy(&grammar, vec!["ab".into()], true).unwrap();
    // The token `abc` goes on with what the grammar forbids; `ab` does not.
    let [ab, abc] = ["ab", "abc"].map(|text| (N_BYTES + LONGER.iter().position(|t| *t == text).unwrap()) as Token);
    assert!(matcher.allows(ab).unwrap() && !matcher.allows(abc).unwrap() && !matcher.allows(TWIN).unwrap());
    let allowed = left(&mut matcher).unwrap();
    assert!(allowed.contains(&ab) && !allowed.contains(&abc) && !allowed.contains(&TWIN) && allowed.contains(&EOG[0]));
    matcher.accept(ab).unwrap();
    assert_eq!(left(&mut matcher).unwrap(), [Token::from(b'd')]);
    let mut fails = Matcher::lazy(&grammar, vec!["ab".into()], true).unwrap();
    assert!(fails.accept(abc).is_err() && fails.allows(ab).is_err());
}

#[test]
fn of_several_triggers_the_first_in_the_text_counts() {
    let mut matcher = lazy(&["t>", "<t>"]);
    say(&mut matcher, "x<t").unwrap();
    say(&mut matcher, ">").unwrap();
    say(&mut matcher, "a</t>").unwrap();
    assert!(matcher.is_over());
}

#[test]
fn there_is_no_lazy_grammar_without_a_trigger() {
    let grammar = compile(&gbnf("root ::= \"a\"")).unwrap();
    assert!(Matcher::lazy(&grammar, vec![], true).is_err());
    assert!(Matcher::lazy(&grammar, vec!["a".into(), String::new()], true).is_err());
}

#[test]
fn a_grammar_may_begin_behind_its_trigger() {
    let grammar = super::compile(&GrammarSource::Regex("xy".into())).unwrap();
    let mut behind = Matcher::lazy(&grammar, vec!["go ".into()], false).unwrap();
    for byte in b"let us go " {
        assert!(behind.allows(Token::from(*byte)).unwrap());
        behind.accept(Token::from(*byte)).unwrap();
    }
    assert!(!behind.is_waiting());
    assert!(behind.allows(Token::from(b'x')).unwrap());
    assert!(!behind.allows(Token::from(b'g')).unwrap());
}

#[test]
fn a_grammar_may_have_begun_in_the_prompt() {
    let grammar = super::compile(&GrammarSource::Regex("ab+".into())).unwrap();
    let mut matcher = Matcher::after(&grammar, "ab").unwrap();
    assert!(matcher.allows(Token::from(b'b')).unwrap());
    assert!(!matcher.allows(Token::from(b'a')).unwrap());
    assert!(Matcher::after(&grammar, "x").is_err());
}

#[test]
fn tokens_that_begin_the_grammar_wrongly_are_left_out_and_others_drawn() {
    let grammar = compile(&gbnf("root ::= \"ab\" \"d\"")).unwrap();
    let matcher = Matcher::lazy(&grammar, vec!["ab".into()], true).unwrap();
    let abc = (N_BYTES + LONGER.iter().position(|text| *text == "abc").unwrap()) as Token;
    let greedy = SamplingParams { temp: 0.0, ..SamplingParams::OFF };
    let mut sampler = Sampler::new(&greedy, &[], N_TOKENS as u32).constrained(Some(matcher));
    let mut row = vec![0.0; N_TOKENS];
    (row[abc as usize], row[TWIN as usize], row[usize::from(b'z')]) = (9.0, 8.0, 7.0);
    assert_eq!(sampler.draw(&mut row).unwrap(), Token::from(b'z'));
    assert_eq!(row[usize::from(b'x')], 0.0, "no other token was looked at");
}
