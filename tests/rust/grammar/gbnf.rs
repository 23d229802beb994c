//! llama.cpp's grammar language, text by text. Random grammars are walked in `src/grammar/gbnf/tests.rs`.

use super::*;

fn check(text: &str, takes_all: &[&str], takes_none: &[&str]) {
    let grammar = compile(&gbnf(text)).unwrap_or_else(|e| panic!("{text}: {e}"));
    for answer in takes_all {
        assert!(takes(&grammar, answer), "{text} takes {answer:?}");
    }
    for answer in takes_none {
        assert!(!takes(&grammar, answer), "{text} does not take {answer:?}");
    }
}

fn refused(text: &str, reason: &str) {
    let error = compile(&gbnf(text)).err().unwrap_or_else(|| panic!("{text} was taken"));
    assert!(error.contains(reason), "{text}: {error}");
}

#[test]
fn the_language_is_read_whole() {
    check("root ::= \"a\\x41\\u00e9\\U0001F600\\n\\t\\\\\\\"\\[\\]\\-\\r\"", &["aAé😀\n\t\\\"[]-\r"], &["aA"]);
    check("root ::= [a-c\\]\\-x-]+", &["abc", "]-x", "-"], &["d", ""]);
    check("root ::= [^a-c\\n]", &["d", "é", "😀"], &["a", "\n", "", "dd"]);
    check("root ::= . .", &["aé", "\n\n"], &["a", "abc"]);
    check("root ::= (\"a\" | \"ab\" | ) \"c\"?", &["", "a", "ab", "c", "ac", "abc"], &["b", "abcc"]);
}

#[test]
fn comments_and_lines_stand_where_they_may() {
    let text =
        "# first\nroot ::= # why\n  a # one\n\n  \n\na ::= (\n \"x\" | # in a group\n  \"y\"\n)* |\n \"z\" # end";
    check(text, &["", "xyx", "z"], &["zz", "xz"]);
    refused("root ::= \"a\"\n  \"b\"", "line 2, column 3");
    refused("root ::= \"a\"\n| \"b\"", "line 2, column 1");
    check("a ::= \"x\"\r\nroot ::= a a\r\n", &["xx"], &["x"]);
}

#[test]
fn repetitions_count() {
    check("root ::= \"ab\"{2,3}", &["abab", "ababab"], &["ab", "abababab", "aba"]);
    check("root ::= [ab]{3} \"a\"{2,} \"b\"{0,1} \"c\"{0}", &["aaaaa", "bbbaaab"], &["aaaa", "aaac"]);
    check("root ::= (\"a\" [0-9]?)+ \"!\"*", &["a1aa2!!"], &["1", ""]);
    check("root ::= (\"a\"*)* \"b\"", &["b", "aaab"], &["a"]);
}

#[test]
fn texts_that_overlap_are_told_apart_late() {
    check("root ::= [a-z]* \"x\"", &["x", "abx", "xx", "axbx"], &["", "ab", "xa"]);
    check("root ::= (\"a\" | \"ab\") (\"bc\" | \"c\")", &["abc", "ac", "abbc"], &["ab", "a"]);
    check("root ::= \"(\" root \")\" | [a-z]* \"x\" [a-z]*", &["((axb))", "x"], &["(ab)", "((x)"]);
    check("root ::= \"if\" root | id\nid ::= [a-z]+", &["ifx", "ififx", "if", "a"], &["", "1"]);
    let nested =
        "root ::= item (\",\" item)*\nitem ::= \"[\" root \"]\" | word\nword ::= \"in\" | \"int\" | [a-z]+ \"t\"";
    check(nested, &["in", "int", "[in,int,[abt]],bt"], &["[in", "a", "in,"]);
    check("root ::= \"(\" root \")\" num | num\nnum ::= [0-9]+ \"5\"", &["15", "(155)25", "(15)555"], &["5", "(15)"]);
}

#[test]
fn characters_that_begin_with_the_same_byte_are_told_apart_late() {
    // The lexer goes byte by byte, and has no way back from the first byte of `»`, with which other characters go on.
    check("root ::= \"«\" [^«»]* root? \"»\"", &["«a»", "«»", "«aé«b»»"], &["«a", "a»", "«a«b»"]);
    check("root ::= \"ab\" y \"é\"\ny ::= [^(é]{1,2} | root", &["abaé", "abaaé", "ababaéé"], &["abé", "aba", "ab(é"]);
}

#[test]
fn rules_that_end_with_themselves_repeat() {
    check("root ::= \"a\" root | \"b\"", &["b", "aaab"], &["a", "ba"]);
    check("root ::= ws \"x\"\nws ::= ([ \\t\\n] ws)?", &["x", "  \n x"], &["x "]);
    check("root ::= [0-9] root? \".\"?", &["12", "1.", "12.."], &[".", "1.."]);
    check("root ::= [0-9] (\",\" root | \";\")?", &["1,2,3", "1,2;"], &["1,", ";"]);
}

#[test]
fn another_rule_may_be_the_root() {
    let source = GrammarSource::Gbnf { text: "root ::= \"a\"\nother ::= \"b\" root".into(), root: "other".into() };
    let grammar = compile(&source).unwrap();
    assert!(takes(&grammar, "ba") && !takes(&grammar, "a"));
}

#[test]
fn a_fault_is_refused_with_its_place() {
    refused("", "no rule `root`");
    refused("foo ::= \"a\"", "no rule `root`");
    refused("root ::= \"a\" b", "line 1, column 14: rule `b` is not defined");
    refused("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule `root` is defined twice");
    refused("root ::= \"abc", "line 1, column 10: a text in quotes");
    refused("root ::= [abc", "line 1, column 10");
    refused("root ::= [z-a]", "runs backwards");
    refused("root ::= []", "empty class");
    refused("root ::= \"\\q\"", "unknown escape");
    refused("root ::= \"\\x4\"", "2 hexadecimal digits");
    refused("root ::= \"\\U00110000\"", "no such character");
    refused("root ::= \"a\"{3,2}", "fewer than the least");
    refused("root ::= \"a\"{2001}", "more than 2000");
    refused("root ::= \"a\"{1,99999999999}", "more than 2000");
    refused("root ::= *", "nothing before it to repeat");
    refused("root ::= (\"a\"", "expected `)`");
    refused("root = \"a\"", "expected `::=`");
    refused("root ::= foo_bar\nfoo ::= \"a\"", "line 1, column 13");
    refused("root ::= <[12]>", "a reference to a token is not supported");
    refused("root ::= !<think>", "a reference to a token is not supported");
    refused("root ::= \"\\x00\"", "no text can have");
}

#[test]
fn left_recursion_is_refused_however_it_hides() {
    refused("root ::= root \"a\" | \"b\"", "left recursion: root -> root");
    refused("root ::= a\na ::= b \"x\" | \"y\"\nb ::= root", "left recursion");
    refused("root ::= a root \"x\" | \"y\"\na ::= \"b\"?", "left recursion");
    refused("root ::= (\"\" | \"a\"*) root | \"y\"", "left recursion");
    refused("root ::= \"a\"\nb ::= b \"c\" | \"d\"", "left recursion: b -> b");
    refused("root ::= \"a\" root", "never ends");
    check("root ::= \"a\" root \"b\" | \"\"", &["", "ab", "aabb"], &["aab"]);
}
