// grammar/xgrammar_hooks.h: what xgrammar's source calls of ours; scripts/get_xgrammar puts the calls in.
// Role: compiled into every file of xgrammar (-include), so it declares two functions and includes nothing.
#pragma once

void kvilt_grammar_grows();  // a state, an edge or a mask more is kept
void kvilt_grammar_works();  // a step of a loop whose length an input may choose
