//! Draws tokens straight from the logits. Free of llama.cpp.
