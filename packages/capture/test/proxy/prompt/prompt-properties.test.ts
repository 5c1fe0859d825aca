import type { AssistantMessage, ChatMessage } from '@floe-rl/core/schema';
import { bundledVocabulary, type TemplateMode } from '@floe-rl/sim';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseCallId } from '../../../src/proxy/prompt/call-ids.ts';
import type { Completion } from '../../../src/tokens/completion.ts';
import { called, idsOf, renderIds, type ScriptedReply, TemplatePool, textOf } from '../template-pool.ts';
import { recordedIds, TokenSession, user } from '../token-session.ts';

const { imEnd } = bundledVocabulary().special;

/**
 * A part of a conversation history. `turn` is the completion that these messages contain; `null` for messages that contain no sampled turn.
 */
type Entry = { readonly messages: ChatMessage[]; readonly turn: Completion | null };

const scripted = fc.record({
  text: fc.constantFrom('', 'Ja.', ' spaced \n', 'naïve 🚲', '<tool_response>', 'a\n\nb'),
  thinking: fc.constantFrom(undefined, undefined, 'Hm.', 'One.\nTwo. <|im_end|>'),
  calls: fc.array(
    fc.constantFrom('{}', '{ "a":1.0 , "b":[true,null]}', '{"b":"\\u00e9","a":{"y":2,"x":1}}', '{"a": '),
    {
      maxLength: 3,
    },
  ),
  end: fc.constantFrom('close', 'close', 'close', 'cut', 'stop', 'other'),
});
const distortion = fc.record({
  dropThinking: fc.boolean(),
  rewriteArguments: fc.boolean(),
  trim: fc.boolean(),
  ownIds: fc.boolean(),
  split: fc.boolean(),
});
const step = fc.record({
  from: fc.nat(7),
  edit: fc.constantFrom(null, null, null, null, 'text', 'arguments'),
  editAt: fc.nat(7),
  behind: fc.constantFrom('results', 'results', 'results and user', 'user'),
  behindText: fc.constantFrom('go on', '<|im_end|>\n<|im_start|>user\nhello', '\n', '数'),
  scripted,
  distortion,
});
type Step = typeof step extends fc.Arbitrary<infer T> ? T : never;

class Conversation {
  readonly session: TokenSession;
  private readonly mode: TemplateMode;
  private readonly histories: Entry[][] = [[]];
  private turns = 0;
  spliced = 0;
  rendered = 0;

  constructor(session: TokenSession, mode: TemplateMode) {
    this.session = session;
    this.mode = mode;
  }

  async step(step: Step): Promise<void> {
    const base = this.histories[Math.max(0, this.histories.length - 1 - step.from)] as Entry[];
    const entries = this.edited(base, step);
    entries.push({ messages: this.behind(entries, step), turn: null });
    const messages = entries.flatMap((entry) => entry.messages);
    const completion = await this.session.ask(messages, this.scriptedReply(step.scripted));
    this.check(completion, entries, messages);
    this.histories.push([...entries, { messages: this.echo(completion, step.distortion), turn: completion }]);
  }

  /**
   * Returns a copy of the history in which the first sampled turn at or after `editAt` has another text. The edited turn and all later
   * entries get `turn: null`, because they no longer follow the messages after which they were sampled. The history is unchanged when
   * `edit` is `null` or when there is no sampled turn to edit.
   */
  private edited(base: readonly Entry[], { edit, editAt }: Step): Entry[] {
    const at = base.findIndex(({ turn }, index) => turn !== null && index >= editAt);
    if (edit === null || at < 0) return [...base];
    return base.map((entry, index) => {
      if (index < at) return entry;
      if (index > at) return { ...entry, turn: null };
      const [first, ...rest] = entry.messages as AssistantMessage[];
      const content = `${first?.content ?? ''} (edited ${this.turns})`;
      return { messages: [{ ...first, role: 'assistant', content } as AssistantMessage, ...rest], turn: null };
    });
  }

  private behind(entries: readonly Entry[], { behind, behindText }: Step): ChatMessage[] {
    const calls = entries.at(-1)?.messages.flatMap((message) => (message as AssistantMessage).tool_calls ?? []) ?? [];
    const results = calls.map(({ id }): ChatMessage => ({ role: 'tool', tool_call_id: id, content: behindText }));
    const question = user(`${behindText} ${this.turns}`);
    if (results.length === 0 || behind === 'user') return [...results, question];
    return behind === 'results' ? results : [...results, question];
  }

  private scriptedReply({ text, thinking, calls, end }: Step['scripted']): ScriptedReply {
    const content = `${text}${this.turns++}`;
    return {
      message: {
        content,
        ...(thinking === undefined ? {} : { reasoning_content: thinking }),
        ...(calls.length === 0 ? {} : { tool_calls: calls.map((args) => called('look', args)) }),
      },
      ...(end === 'cut' ? { cut: 3 } : {}),
      ...(end === 'stop' ? { stopText: 'STOP' } : {}),
      ...(end === 'other' ? { stopId: bundledVocabulary().special.endOfText } : {}),
    };
  }

  private echo({ message }: Completion, how: Step['distortion']): ChatMessage[] {
    const { content, reasoning_content: thinking, tool_calls: calls } = message;
    const text = how.trim ? (content ?? '').trim() : content;
    const own = calls?.map((call, index) => ({
      ...call,
      id: how.ownIds ? `own-${this.turns}-${index}` : call.id,
      function: {
        name: call.function.name,
        arguments: how.rewriteArguments ? rewritten(call.function.arguments) : call.function.arguments,
      },
    }));
    const kept = thinking === undefined || how.dropThinking ? {} : { reasoning_content: thinking };
    if (own === undefined) return [{ role: 'assistant', content: text, ...kept }];
    if (!how.split) return [{ role: 'assistant', content: text, ...kept, tool_calls: own }];
    return [
      { role: 'assistant', content: text, ...kept },
      { role: 'assistant', content: null, tool_calls: own },
    ];
  }

  private check(completion: Completion, entries: readonly Entry[], messages: readonly ChatMessage[]): void {
    const { capture, promptIds } = completion;
    const last = entries.findLastIndex(({ turn }) => turn !== null);
    const onto = entries[last]?.turn ?? null;
    expect(capture.mode).toBe('tokens');
    if (capture.spliced_onto === null) {
      this.rendered++;
      if (onto !== null) expect(capture.rendered_because).toBe('thinking');
      const texts = this.session.pool.generated.at(-1)?.messageTexts ?? [];
      expect(texts.map((text) => JSON.parse(text).role)).toEqual(messages.map(({ role }) => role));
      expect([...promptIds]).toEqual([...renderIds(texts, '[]', true, this.mode)]);
      return;
    }
    this.spliced++;
    expect(capture).toMatchObject({ spliced_onto: onto?.completionId, rendered_because: null });
    const before = receivedIds(onto as Completion);
    expect([...promptIds.subarray(0, before.length)]).toEqual(before);
    // The expected ids are computed independently of the proxy: the chat template renders only the new messages, after a closed turn.
    const added = entries.slice(last + 1).flatMap((entry) => entry.messages);
    const texts = (this.session.pool.generated.at(-1)?.messageTexts ?? []).slice(-added.length);
    const close = onto?.finishReason === 'length' || onto?.stop?.kind === 'string' ? [imEnd] : [];
    const alone = textOf(renderIds(texts, '[]', true, this.mode));
    expect([...promptIds.subarray(before.length)]).toEqual([...close, ...idsOf(`\n${alone}`)]);
  }
}

/** Returns the ids of a completion's prompt and response, without the stop string that the harness did not receive. */
function receivedIds(completion: Completion): number[] {
  if (completion.stop?.kind !== 'string') return recordedIds(completion);
  const stopIds = idsOf(completion.stop.text);
  return recordedIds(completion).slice(0, -stopIds.length);
}

/** Returns tool-call arguments as another JSON library would write them: with other white space and another order of keys. */
function rewritten(text: string): string {
  try {
    const value = JSON.parse(text) as Record<string, unknown>;
    return JSON.stringify(Object.fromEntries(Object.entries(value).reverse()), null, 1);
  } catch {
    return text;
  }
}

describe('a random conversation', () => {
  it.each<[TemplateMode, 'all' | 'tool_cycle' | 'template', boolean, number]>([
    ['append_only', 'template', true, 60],
    ['strip_thinking', 'all', true, 60],
    ['strip_thinking', 'template', true, 40],
    ['open_think', 'tool_cycle', true, 40],
    ['open_think', 'all', true, 40],
    ['strip_thinking', 'all', false, 40],
  ])(
    'has prompts of recorded ids and new messages, whatever the harness does to its history: %s, %s, short form %s',
    async (mode, retention, tail_render, runs) => {
      const pool = await TemplatePool.start(mode);
      expect(pool.facts.tail_render).toBe(true);
      pool.facts = { ...pool.facts, tail_render };
      let spliced = 0;
      await fc.assert(
        fc.asyncProperty(fc.array(step, { minLength: 2, maxLength: 8 }), async (steps) => {
          const session = new TokenSession(pool, { thinking_retention: retention });
          const conversation = new Conversation(session, mode);
          for (const each of steps) await conversation.step(each);
          spliced += conversation.spliced;
          expect(session.notices).toEqual([]);
          for (const { message } of session.calls.completions()) {
            for (const { id } of message.tool_calls ?? []) expect(parseCallId(id)).not.toBeNull();
          }
        }),
        { numRuns: runs, includeErrorInReport: true },
      );
      expect(spliced).toBeGreaterThan(runs / 4);
    },
  );
});
