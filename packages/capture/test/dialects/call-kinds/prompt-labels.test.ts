import type { CallRules } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import {
  assistant,
  chat,
  codexHeaders,
  expectForeign,
  format,
  json,
  jsonTool,
  label,
  MAIN,
  system,
  tool,
  user,
} from './label-requests.ts';

type LabelInput = NonNullable<Parameters<typeof label>[2]>;

const CLAUDE_SUMMARY =
  'Text only.\n\nYour task is to create a detailed summary of the conversation so far, …\n<summary>\n</summary>';
const CODEX_SUMMARY = 'You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary.';
const GEMINI_SUBAGENT = 'Call `complete_task`. * This is the ONLY way to complete your mission.';
const GEMINI_SNAPSHOT =
  '\nYou are a specialized system component responsible for distilling chat history into a <state_snapshot>.';
const QWEN_SUBAGENT = ' - When done, return the final result as a normal model response (not a tool call) and stop.';
const QWEN_SUMMARY =
  'You are the component that summarizes a conversation when its context window is about to overflow.';
const QWEN_DIRECTIVE = 'First, reason. Then, produce the <state_snapshot> XML.';
const QWEN_MEMORY = 'You are now acting as the managed memory extraction subagent for an assistant.';
const PI_SUMMARY = 'You are a context summarization assistant. Your task is to read a conversation.';
const OPENCODE_SUMMARY = 'You are a context summarization agent. You are given a conversation.';
const OPENCODE_TITLE = 'You are a title generator. You output ONLY a thread title. Nothing else.';

describe('labels from a prompt', () => {
  it.each<[string, CallRules[], LabelInput, string]>([
    ['of Claude Code for a summary', ['claude_code'], chat(user(CLAUDE_SUMMARY)), 'compaction'],
    [
      'of Claude Code for a summary in an older form',
      ['claude_code'],
      chat(user(CLAUDE_SUMMARY.slice(12))),
      'compaction',
    ],
    [
      'of Codex for a summary without headers',
      ['codex'],
      chat(user('a'), assistant('b'), user(CODEX_SUMMARY)),
      'compaction',
    ],
    ['of pi for a summary', ['pi'], chat(system(PI_SUMMARY), user('[User]: a')), 'compaction'],
    ['of opencode for a summary', ['opencode'], chat(system(OPENCODE_SUMMARY), user('[User]: a')), 'compaction'],
    ['of opencode for a title', ['opencode'], chat(system(OPENCODE_TITLE), user('a')), 'title'],
    ['of Gemini CLI for a snapshot', ['gemini_cli'], chat(system(GEMINI_SNAPSHOT), user('go')), 'compaction'],
    ['of Qwen Code for a snapshot', ['qwen_code'], chat(system(QWEN_SUMMARY), user(QWEN_DIRECTIVE)), 'compaction'],
    [
      "of Qwen Code that asks for one behind the agent's own prompt",
      ['qwen_code'],
      {
        ...chat(system('You are Qwen Code.'), user('a'), user(`\n${QWEN_SUMMARY}\n${QWEN_DIRECTIVE}`)),
        tools: [tool('edit')],
      },
      'compaction',
    ],
    ['for a title in JSON', ['claude_code', 'qwen_code'], format('title'), 'title'],
    ["for a title by Qwen Code's JSON tool", ['claude_code', 'qwen_code'], jsonTool('title'), 'title'],
    ['for the next speaker', ['gemini_cli', 'qwen_code'], format('reasoning', 'next_speaker'), 'routing'],
    [
      'for the next speaker by the JSON tool',
      ['gemini_cli', 'qwen_code'],
      jsonTool('reasoning', 'next_speaker'),
      'routing',
    ],
    ['for a model', ['gemini_cli', 'qwen_code'], format('reasoning', 'model_choice'), 'routing'],
    [
      'for a score of the task',
      ['gemini_cli', 'qwen_code'],
      format('complexity_reasoning', 'complexity_score'),
      'routing',
    ],
    [
      'for a loop check',
      ['gemini_cli', 'qwen_code'],
      format('unproductive_state_analysis', 'unproductive_state_confidence'),
      'routing',
    ],
  ])(
    "are correct by the rules of the harness, and the main agent's by all others, for a request %s",
    (_, owners, more, callKind) => {
      for (const rules of owners) expect(label(rules, {}, more)).toEqual({ thread: 'main', callKind });
      expectForeign(owners, {}, more);
    },
  );

  it.each<[string, LabelInput]>([
    ["that quotes Claude Code's summary prompt in a task", chat(user(`Explain "${CLAUDE_SUMMARY.slice(12)}"`))],
    ['with that prompt but without the summary tag', chat(user(CLAUDE_SUMMARY.split('<')[0] ?? ''))],
    ['after a summary', chat(user(CLAUDE_SUMMARY), assistant('a'), user('go on'))],
    [
      'whose tool result contains that prompt',
      chat(user('a'), assistant('b'), { role: 'tool', tool_call_id: 'c', content: CLAUDE_SUMMARY }),
    ],
    ['whose reply contains that prompt', chat(user('a'), assistant(CLAUDE_SUMMARY))],
    ["with Codex's summary prompt and tools", { ...chat(user(CODEX_SUMMARY)), tools: [tool('exec_command')] }],
    ["that contains Codex's summary prompt in a longer text", chat(user(`What does this do? ${CODEX_SUMMARY}`))],
    ["with pi's summary prompt and tools", { ...chat(system(PI_SUMMARY), user('a')), tools: [tool('read')] }],
    ["with pi's summary prompt and a reply", chat(system(PI_SUMMARY), user('a'), assistant('b'), user('c'))],
    ["that quotes pi's summary prompt", chat(system(`Never say: ${PI_SUMMARY}`), user('a'))],
    ["with pi's summary prompt in a user message", chat(system('s'), user(PI_SUMMARY))],
    ["that quotes opencode's summary prompt", chat(system(`Never say: ${OPENCODE_SUMMARY}`), user('a'))],
    ["with opencode's title prompt and tools", { ...chat(system(OPENCODE_TITLE)), tools: [tool('bash')] }],
    ["with opencode's title prompt in a user message", chat(user(OPENCODE_TITLE))],
    ['for a title and another field', format('title', 'body')],
    ['for a title after a reply', { ...chat(user('a'), assistant('b'), user('c')), ...format('title') }],
    ['for a title with tools', { ...format('title'), tools: [tool('read')] }],
    ['for JSON without a schema', { responseFormat: { type: 'json_object' } }],
    ['for only one of the routing fields', format('reasoning')],
    ['for the next speaker and another field', format('reasoning', 'next_speaker', 'answer')],
    ['whose only tool has a title argument', { tools: [tool('publish', json('title'))] }],
    ['with the JSON tool and another tool', { tools: [tool('respond_in_schema', json('title')), tool('read')] }],
    [
      "with Gemini CLI's snapshot prompt and tools",
      { ...chat(system(GEMINI_SNAPSHOT), user('a')), tools: [tool('glob')] },
    ],
    [
      "with Gemini CLI's snapshot prompt but without the snapshot tag",
      chat(system(GEMINI_SNAPSHOT.split('<')[0] ?? ''), user('a')),
    ],
    [
      'with the tool complete_task but another system prompt',
      { ...chat(system('Finish.'), user('a')), tools: [tool('complete_task')] },
    ],
    [
      "with the system prompt of Gemini CLI's sub-agents but without their tool",
      { ...chat(system(GEMINI_SUBAGENT)), tools: [tool('glob')] },
    ],
    [
      'with that system prompt in a user message',
      { ...chat(system('s'), user(GEMINI_SUBAGENT)), tools: [tool('complete_task')] },
    ],
    ["with the prompt of Qwen Code's sub-agents in a user message", chat(system('s'), user(QWEN_SUBAGENT))],
    ["whose user quotes Qwen Code's summary prompt", chat(user(`Improve this: ${QWEN_SUMMARY} ${QWEN_DIRECTIVE}`))],
    ["with Qwen Code's summary prompt but without the snapshot tag", chat(system(QWEN_SUMMARY), user('Write a poem.'))],
    ["that quotes Qwen Code's memory prompt", chat(system(`You are not that agent: ${QWEN_MEMORY}`), user('a'))],
    ["with Qwen Code's memory prompt in a user message", chat(system('s'), user(QWEN_MEMORY))],
  ])("are the main agent's by all rules for a request %s", (_, more) => {
    expectForeign([], {}, more);
  });

  it('identify a sub-agent, also when it compacts', () => {
    const gemini = { tools: [tool('complete_task')] };
    const agents = [
      label('gemini_cli', {}, { ...gemini, ...chat(system(GEMINI_SUBAGENT), user('one')) }),
      label('gemini_cli', {}, { ...gemini, ...chat(system(GEMINI_SUBAGENT), user('two')) }),
      label('qwen_code', {}, chat(system(QWEN_SUBAGENT), user('one'))),
      label('qwen_code', {}, chat(system(QWEN_SUBAGENT), user('two'))),
    ];
    expect(agents.map(({ callKind }) => callKind)).toEqual(agents.map(() => 'subagent'));
    expect(new Set([...agents.map(({ thread }) => thread), 'main']).size).toBe(5);
    const asked = chat(system(QWEN_SUBAGENT), user('one'), user(`${QWEN_SUMMARY}\n${QWEN_DIRECTIVE}`));
    const compacting = label('qwen_code', {}, { ...asked, tools: [tool('edit')] });
    expect(compacting).toEqual({ thread: agents[2]?.thread, callKind: 'compaction' });
    expectForeign(['gemini_cli'], {}, { ...gemini, ...chat(system(GEMINI_SUBAGENT), user('one')) });
    expectForeign(['qwen_code'], {}, chat(system(QWEN_SUBAGENT), user('one')));
    const claude = label('claude_code', { 'x-claude-code-agent-id': 'a5' }, chat(user(CLAUDE_SUMMARY)));
    expect(claude).toEqual({ thread: 'a5', callKind: 'compaction' });
  });

  it('put an agent that writes memories into a separate thread', () => {
    const { thread, callKind } = label('qwen_code', {}, chat(system(QWEN_MEMORY), user('a')));
    expect(callKind).toBe('memory');
    expectForeign(['qwen_code'], {}, chat(system(QWEN_MEMORY), user('a')));
    expect(thread).not.toBe('main');
  });

  it('are overridden by labels from headers', () => {
    const turn = codexHeaders({ request_kind: 'turn', thread_source: 'user' });
    expect(label('codex', turn)).toEqual(MAIN);
    const prewarm = codexHeaders({ request_kind: 'prewarm', thread_source: 'user' });
    expect(label('codex', prewarm, chat(user(CODEX_SUMMARY))).callKind).toBe('probe');
  });
});
