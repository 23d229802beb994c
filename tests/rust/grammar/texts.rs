//! Choices, regular expressions, and what holds for all grammars.

use super::*;

fn choice(texts: &[&str]) -> GrammarSource {
    GrammarSource::Choice(texts.iter().map(ToString::to_string).collect())
}

fn regex(pattern: &str) -> Grammar {
    compile(&GrammarSource::Regex(pattern.into())).unwrap()
}

#[test]
fn a_choice_takes_its_texts_and_no_other() {
    let grammar = compile(&choice(&["ab", "abc", "日本語", "a/b\\", "x\ny"])).unwrap();
    for text in ["ab", "abc", "日本語", "a/b\\", "x\ny"] {
        assert!(takes(&grammar, text), "{text}");
    }
    for text in ["", "a", "abcd", "日本", "x", "b"] {
        assert!(!takes(&grammar, text), "{text}");
    }
    assert!(compile(&choice(&[])).is_err());
    assert!(compile(&choice(&["a", ""])).is_err());
}

#[test]
fn a_regular_expression_matches_the_whole_answer_with_anchors_or_without() {
    for pattern in [r"[a-c]+\d{2,3}|x/y", r"^([a-c]+\d{2,3}|x/y)$"] {
        let grammar = regex(pattern);
        assert!(takes(&grammar, "abc123") && takes(&grammar, "a12") && takes(&grammar, "x/y"), "{pattern}");
        assert!(
            !takes(&grammar, "a1") && !takes(&grammar, "a1234") && !takes(&grammar, "za12") && !takes(&grammar, "")
        );
    }
    assert!(takes(&regex(r"a\$"), "a$"));
    assert!(takes(&regex("(?i)abc"), "AbC"));
    assert!(takes(&regex("a*"), "") && takes(&regex("a*"), "aaa"));
    for bad in ["(", "a(?=b)", r"(a)\1", "", "^$"] {
        assert!(compile(&GrammarSource::Regex(bad.into())).is_err(), "{bad}");
    }
}

#[test]
fn an_end_is_allowed_exactly_where_the_answer_may_end_and_then_nothing_else() {
    let mut matcher = Matcher::new(&regex("ab?"));
    assert!(!left(&mut matcher).unwrap().iter().any(|token| EOG.contains(token)));
    assert!(!matcher.is_over());
    matcher.accept(Token::from(b'a')).unwrap();
    let allowed = left(&mut matcher).unwrap();
    assert_eq!(allowed, [vec![Token::from(b'b')], EOG.to_vec()].concat());
    matcher.accept(Token::from(b'b')).unwrap();
    assert!(matcher.is_over());
    assert_eq!(left(&mut matcher).unwrap(), EOG);
    assert!(!matcher.allows(Token::from(b'b')).unwrap());
    matcher.accept(EOG[1]).unwrap();
    assert!(matcher.is_over());
    assert_eq!(left(&mut matcher).unwrap(), EOG);
}

#[test]
fn a_control_token_is_never_allowed_and_a_twin_always_with_its_like() {
    let mut matcher = Matcher::new(&regex("[a-z]+"));
    let allowed = left(&mut matcher).unwrap();
    assert!(allowed.contains(&TWIN) && !allowed.contains(&CONTROL));
    assert!(matcher.allows(TWIN).unwrap() && !matcher.allows(CONTROL).unwrap());
    assert!(matcher.clone().accept(CONTROL).is_err());
    matcher.accept(TWIN).unwrap();
    assert!(matcher.allows(EOG[0]).unwrap());
    assert!(!matcher.allows(-1).unwrap() && !matcher.allows(N_TOKENS as Token).unwrap());
}

#[test]
fn a_character_may_be_spelled_over_token_borders() {
    let grammar = regex("a☃a");
    assert!(takes_tokens(&grammar, &[HALF, REST]));
    assert!(takes(&grammar, "a☃a"));
    let mut matcher = Matcher::new(&regex("a[^☃]a"));
    assert!(matcher.allows(HALF).unwrap());
    matcher.accept(HALF).unwrap();
    assert!(!matcher.allows(REST).unwrap());
    assert!(!matcher.allows(Token::from(b'a')).unwrap());
}

#[test]
fn an_error_stays_and_nothing_is_generated_unconstrained() {
    let mut matcher = Matcher::new(&regex("abc"));
    assert!(matcher.accept(Token::from(b'z')).is_err());
    assert!(matcher.allows(Token::from(b'a')).is_err());
    assert!(matcher.mask(&mut vec![0.0; N_TOKENS]).is_err());
    assert!(matcher.accept(EOG[0]).is_err());
    let mut ended = Matcher::new(&regex("abc"));
    assert!(ended.accept(EOG[0]).is_err());
    assert!(Matcher::new(&regex("abc")).mask(&mut [0.0; 3]).is_err());
}

#[test]
fn a_row_without_a_token_to_draw_is_an_error() {
    let mut matcher = Matcher::new(&regex("b"));
    let mut logits = vec![1.0; N_TOKENS];
    logits[b'b' as usize] = f32::NEG_INFINITY;
    assert!(matcher.mask(&mut logits).unwrap_err().contains("-inf"));
}

#[test]
fn what_was_compiled_is_kept_within_bounds() {
    let compiler = Compiler::new(Vocabulary::new(tokens(), &EOG).unwrap()).unwrap();
    for i in 0..300 {
        compiler.compile(&GrammarSource::Regex(format!("a{i}"))).unwrap();
        compiler.compile(&GrammarSource::Regex("b".into())).unwrap();
    }
    assert!(compiler.n_kept() <= 128);
    assert!(compiler.compile(&GrammarSource::Regex("(".into())).is_err());
}

#[test]
fn requests_share_a_grammar_and_not_their_places() {
    const fn is_send<T: Send>() {}
    const fn is_shared<T: Send + Sync>() {}
    is_send::<Matcher>();
    is_shared::<Compiler>();
    is_shared::<Grammar>();
    let grammar = regex("ab|cd");
    let (mut first, mut second) = (Matcher::new(&grammar), Matcher::new(&grammar));
    first.accept(Token::from(b'a')).unwrap();
    second.accept(Token::from(b'c')).unwrap();
    let mut third = second.clone();
    assert!(first.allows(Token::from(b'b')).unwrap() && !first.allows(Token::from(b'd')).unwrap());
    second.accept(Token::from(b'd')).unwrap();
    assert!(second.is_over() && !third.is_over() && third.allows(Token::from(b'd')).unwrap());
}
