//! From a conversation to a prompt, and to what the answer looks like.

use super::asked::{Asked, ToolChoice};
use super::controls::Controls;
use super::tools;
use crate::backend::Tokenizer;
use crate::core::{Begin, Shape, Token};
use crate::error::Error;
use crate::options::GrammarSource;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::hash::{BuildHasher, RandomState};

/// A chat template.
pub trait Template {
    /// Whether it tells the model of tools, and of calls that were made.
    fn knows_tools(&self) -> bool;

    /// Whether an answer may take several tools' calls.
    fn knows_parallel_calls(&self) -> bool;

    /// Whether models with it think aloud before they answer.
    fn thinks(&self) -> bool;

    /// Render a conversation: an object with the keys that `lb_chat_apply` of the shim reads.
    ///
    /// # Errors
    /// [`Error::Template`] where it fails, with its own reason.
    fn apply(&self, asked: &str) -> Result<Made, Error>;
}

/// What a template makes of a conversation.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Made {
    /// The prompt.
    pub prompt: String,
    /// How answers are written, by llama.cpp's number.
    #[serde(default)]
    pub format: i32,
    /// What they keep to, in GBNF; empty for anything.
    #[serde(default)]
    pub grammar: String,
    /// Whether that holds from a trigger on only.
    #[serde(default)]
    pub grammar_lazy: bool,
    /// The triggers.
    #[serde(default)]
    pub grammar_triggers: Vec<Trigger>,
    /// The end of the prompt, which begins the answer.
    #[serde(default)]
    pub generation_prompt: String,
    /// Whether the model thinks aloud.
    #[serde(default)]
    pub supports_thinking: bool,
    /// Control tokens that belong to answers.
    #[serde(default)]
    pub preserved_tokens: Vec<String>,
    /// Texts that end them.
    #[serde(default)]
    pub stop: Vec<String>,
    /// What reads them.
    #[serde(default)]
    pub parser: String,
    /// What begins thoughts.
    #[serde(default)]
    pub thinking_start: String,
    /// What ends them.
    #[serde(default)]
    pub thinking_ends: Vec<String>,
}

impl Made {
    /// Texts at which what an answer says may end and something else begin.
    fn markers(&self) -> Vec<&str> {
        let triggers = self.grammar_triggers.iter().map(|trigger| &trigger.value);
        let all =
            [&self.thinking_start].into_iter().chain(&self.thinking_ends).chain(&self.preserved_tokens).chain(triggers);
        let mut all: Vec<&str> = all.map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Where a grammar begins to hold.
#[derive(Clone, Debug, Deserialize)]
pub struct Trigger {
    /// llama.cpp's number of its kind: a token, a word, or patterns.
    #[serde(rename = "type")]
    pub kind: i32,
    /// The text.
    pub value: String,
}

/// llama.cpp's numbers of the kinds of triggers that are texts.
const TRIGGER_TEXTS: [i32; 2] = [0, 1];

/// A conversation, ready for the engine.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// The prompt.
    pub prompt: String,
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// What the answer looks like.
    pub shape: Shape,
    /// How it is read, as JSON for `llama_batch._chat`.
    pub syntax: String,
}

/// Render a conversation with a template.
///
/// # Errors
/// [`Error::Template`] where something does not suit it or it fails, and [`Error::Prompt`].
pub fn render(
    asked: &Asked,
    template: &dyn Template,
    controls: &Controls,
    tokenizer: &dyn Tokenizer,
) -> Result<Conversation, Error> {
    let (mut tools, choice) = asked.settled()?;
    let mut messages = asked.messages.clone();
    let offers = !tools.is_empty() && choice != ToolChoice::None;
    if offers && (asked.json_schema.is_some() || asked.is_constrained) {
        return Err(Error::Template("tools and a grammar of one's own cannot be used together".into()));
    }
    let mut by_hand = None;
    if (!tools.is_empty() || tools::mentioned(&messages)) && !template.knows_tools() {
        by_hand = offers.then(|| tools::shape(&tools, choice));
        let told = std::mem::take(&mut tools);
        messages = tools::by_hand(messages, if offers { &told } else { &[] }, choice);
    }
    controls.check_all(&asked.chat_template_kwargs, "chat_template_kwargs")?;
    let replaced = controls.replace(&mut messages, &mut tools)?;
    let calls = offers && by_hand.is_none();
    // Where a call is required, llama.cpp lets anything be said before it. The grammar that it has for a call that was begun
    // holds from the answer's beginning on instead, unless thoughts come first.
    let at_once = calls && choice == ToolChoice::Required && !thinks(asked, template);
    let given = given(asked, template, &messages, tools, if at_once { ToolChoice::Auto } else { choice });
    let mut made = template.apply(&given.to_string())?;
    let mut plain = Vec::new();
    if let Some(replaced) = replaced {
        (made.prompt, plain) = replaced.restore(&made.prompt);
        made.generation_prompt = replaced.restore(&made.generation_prompt).0;
    }
    let tokens = controls.tokens(&made.prompt, &plain, tokenizer)?;
    let syntax = if by_hand.is_some() {
        json!({"kind": "by_hand", "key": fresh_key(), "in_call": choice == ToolChoice::Required})
    } else if reads(asked, template, calls) {
        native_syntax(asked, &made)
    } else {
        json!({"kind": "plain"})
    };
    let shape = by_hand.map_or_else(|| shape(&made, at_once), Ok)?;
    if calls && choice == ToolChoice::Required && shape.grammar.is_none() {
        let unknown = "llama.cpp does not know how this template writes calls: none can be required";
        return Err(Error::Template(unknown.into()));
    }
    Ok(Conversation { prompt: made.prompt, tokens, shape, syntax: syntax.to_string() })
}

/// Whether thoughts come before the answer.
fn thinks(asked: &Asked, template: &dyn Template) -> bool {
    template.thinks() && asked.enable_thinking != Some(false)
}

/// Whether llama.cpp has to read the answer: it may hold calls or thoughts, or go on with what was said.
fn reads(asked: &Asked, template: &dyn Template, calls: bool) -> bool {
    calls || template.thinks() || asked.continue_final_message
}

/// What the template is given.
fn given(
    asked: &Asked,
    template: &dyn Template,
    messages: &[Map<String, Value>],
    tools: Vec<Value>,
    choice: ToolChoice,
) -> Value {
    let calls = !tools.is_empty() && choice != ToolChoice::None;
    let mut given = json!({
        "messages": messages,
        "add_generation_prompt": asked.add_generation_prompt,
        "continue_final_message": asked.continue_final_message,
        "enable_thinking": asked.enable_thinking.unwrap_or(true),
        "reasoning": asked.separate_reasoning,
        "kwargs": asked.chat_template_kwargs,
        "pure": !reads(asked, template, calls),
    });
    if !tools.is_empty() {
        given["tools"] = tools.into();
        given["tool_choice"] = choice.word().into();
        let parallel = asked.parallel_tool_calls.unwrap_or_else(|| template.knows_parallel_calls());
        given["parallel_tool_calls"] = parallel.into();
    }
    if let Some(schema) = asked.json_schema.as_ref().filter(|_| thinks(asked, template)) {
        // The thoughts come first, and only llama.cpp knows where they end.
        given["json_schema"] = schema.clone().into();
    }
    given
}

/// How llama.cpp reads the answer.
fn native_syntax(asked: &Asked, made: &Made) -> Value {
    json!({
        "kind": "native",
        "key": fresh_key(),
        "markers": made.markers(),
        "format": made.format,
        "generation_prompt": made.generation_prompt,
        "parser": made.parser,
        "reasoning": asked.separate_reasoning,
        "continues": asked.continue_final_message,
    })
}

/// What calls are named by: no two conversations have the same.
fn fresh_key() -> String {
    format!("{:016x}", RandomState::new().hash_one(0_u8))
}

/// What the answer looks like where the template says it; `at_once`: from its beginning on.
fn shape(made: &Made, at_once: bool) -> Result<Shape, Error> {
    let grammar = (!made.grammar.is_empty()).then(|| {
        let source = GrammarSource::Gbnf { text: made.grammar.clone(), root: "root".into() };
        let begin = if at_once && made.grammar_lazy {
            Begin::default()
        } else if made.grammar_lazy {
            if made.grammar_triggers.iter().any(|trigger| !TRIGGER_TEXTS.contains(&trigger.kind)) {
                return Err(Error::Template(
                    "the template's calls begin with a pattern, which is not supported".into(),
                ));
            }
            Begin::With(made.grammar_triggers.iter().map(|trigger| trigger.value.clone()).collect())
        } else {
            Begin::After(made.generation_prompt.clone())
        };
        Ok((source, begin))
    });
    let grammar = grammar.transpose()?;
    Ok(Shape { grammar, shown: made.preserved_tokens.clone(), stop: made.stop.clone() })
}

/// A conversation without any template, for a simulated model.
///
/// # Errors
/// [`Error::Template`] and [`Error::Prompt`].
pub fn plain(asked: &Asked, tokenizer: &dyn Tokenizer) -> Result<Conversation, Error> {
    struct Plain;
    impl Template for Plain {
        fn knows_tools(&self) -> bool {
            false
        }

        fn knows_parallel_calls(&self) -> bool {
            false
        }

        fn thinks(&self) -> bool {
            false
        }

        fn apply(&self, asked: &str) -> Result<Made, Error> {
            #[derive(Deserialize)]
            struct Given {
                messages: Vec<Map<String, Value>>,
            }
            let given: Given = serde_json::from_str(asked).map_err(|e| Error::Template(e.to_string()))?;
            let text = |value: Option<&Value>| match value {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            };
            let line = |message: Map<String, Value>| {
                format!("<{}> {}\n", text(message.get("role")), text(message.get("content")))
            };
            Ok(Made { prompt: given.messages.into_iter().map(line).collect(), ..Made::default() })
        }
    }
    render(asked, &Plain, &Controls::new([]), tokenizer)
}
