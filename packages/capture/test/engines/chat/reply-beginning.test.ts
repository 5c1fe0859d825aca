import type { AssistantMessage, ToolCall } from '@floe-rl/core/schema';
import { bundledVocabulary } from '@floe-rl/sim';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runs } from '../../../../../test/effort.ts';
import { ReplyParser } from '../../../../sim/src/reply-parser.ts';
import { VisibleText } from '../../../../sim/src/visible-text.ts';
import { assistantMessage } from '../../../src/engines/chat/messages.ts';
import { agreedBeginning, type StreamedReply } from '../../../src/engines/chat/reply-beginning.ts';

const vocabulary = bundledVocabulary();

const newParser = (insideThinking: boolean): ReplyParser =>
  new ReplyParser({
    special: vocabulary.special,
    insideThinking,
    parseCalls: true,
    newCallId: (index) => `id${index}`,
  });

const newText = (): VisibleText => new VisibleText(vocabulary, { stop: [], includeStop: false, skipSpecial: false });

/** Returns what the simulated parser for streams shows after it has received all ids at once. */
function streamedOf(ids: readonly number[], insideThinking: boolean): StreamedReply {
  const text = newText();
  for (const id of ids) text.push(id);
  const { reasoning = '', content = '', calls = [] } = newParser(insideThinking).push(text.release());
  return { reasoning, text: content, hasCalls: calls.length > 0 };
}

/** Returns the message that the simulated parser makes from the ids of a complete reply. */
function wholeOf(ids: readonly number[], insideThinking: boolean): AssistantMessage {
  const text = newText();
  for (const id of ids) text.push(id);
  const parser = newParser(insideThinking);
  parser.push(text.finish());
  const { reasoning, content, calls } = parser.parsed;
  const toolCalls = calls.map(
    ({ id, name, argumentsText }): ToolCall => ({ id, type: 'function', function: { name, arguments: argumentsText } }),
  );
  return assistantMessage(content ?? '', reasoning ?? '', toolCalls);
}

/**
 * Ways in which a server's parser for complete replies may read a reply. Each function changes the simulated parser's `message`
 * accordingly; `ids` are the ids of the reply.
 */
const QUIRKS: Readonly<Record<string, (message: AssistantMessage, ids: readonly number[]) => AssistantMessage>> = {
  'reads replies as in a stream': (message) => message,
  'removes white space around thinking and text': ({ content, reasoning_content, tool_calls = [] }) =>
    assistantMessage((content ?? '').trim(), (reasoning_content ?? '').trim(), tool_calls),
  'takes thinking without an end for text': (message, ids) =>
    ids.includes(vocabulary.special.thinkClose)
      ? message
      : assistantMessage((message.reasoning_content ?? '') + (message.content ?? ''), '', message.tool_calls ?? []),
  'takes text without thinking for thinking': (message, ids) =>
    ids.includes(vocabulary.special.thinkClose)
      ? message
      : assistantMessage('', (message.reasoning_content ?? '') + (message.content ?? ''), message.tool_calls ?? []),
};

const call = (body: string): string => `<tool_call>\n${body}\n</tool_call>`;
const piece = fc.oneof(
  fc.constantFrom('Let me see. ', 'zwölf ', '日本語', '😀', ' three', ' four', '\n\n', ' ', '<', '{"a": [', '</', '.'),
  fc.constantFrom('<think>', '</think>', '</think>\n\n', call('{"name": "f", "arguments": {"a": 1}}')),
  fc.constantFrom(call('{"name": "f", "arguments": {'), '<tool_call>\n{"name": "f"', '</tool_call>', '<|im_end|>'),
  fc.string({ unit: 'grapheme', maxLength: 6 }),
);
const replies = fc.array(piece, { minLength: 1, maxLength: 12 }).map((pieces) => pieces.join(''));
const stopLists = fc.uniqueArray(fc.constantFrom(' four', 'see. z', '\n\n\n', '本語😀', 'aa'), { maxLength: 2 });

/** Returns the thinking and the text that the agent receives: they end before the first stop string, which ended the reply. */
function cut(message: AssistantMessage, stops: readonly string[]): { reasoning: string; text: string } {
  const before = (text: string): string => {
    const starts = stops.map((stop) => text.indexOf(stop)).filter((at) => at >= 0);
    return starts.length === 0 ? text : text.slice(0, Math.min(...starts));
  };
  const reasoning = message.reasoning_content ?? '';
  const shown = before(reasoning);
  return { reasoning: shown, text: shown === reasoning ? before(message.content ?? '') : '' };
}

const hasStop = ({ content, reasoning_content }: AssistantMessage, stops: readonly string[]): boolean =>
  stops.some((stop) => (content ?? '').includes(stop) || (reasoning_content ?? '').includes(stop));

describe.each(Object.entries(QUIRKS))(
  'the beginning of a reply, when the parser of complete replies %s',
  (_, quirk) => {
    it('is the beginning of the complete message after each token', () => {
      fc.assert(
        fc.property(replies, stopLists, fc.boolean(), (reply, stops, insideThinking) => {
          const all = vocabulary.encode(reply);
          const parsed = (count: number): AssistantMessage => {
            const ids = all.slice(0, count);
            return quirk(wholeOf(ids, insideThinking), ids);
          };
          // The engine ends the reply with the token that completes a stop string.
          let end = 1;
          while (end < all.length && !hasStop(parsed(end), stops)) end++;
          const complete = cut(parsed(end), stops);
          for (let count = 1; count < end; count++) {
            const streamed = streamedOf(all.slice(0, count), insideThinking);
            const { reasoning, text } = agreedBeginning(streamed, parsed(count), stops);
            expect(complete.reasoning.slice(0, reasoning.length)).toBe(reasoning);
            expect(complete.text.slice(0, text.length)).toBe(text);
            if (text !== '') expect(reasoning).toBe(complete.reasoning);
          }
        }),
        { numRuns: runs(150) },
      );
    });
  },
);

describe('the beginning of a reply', () => {
  const message = (content: string, reasoning = ''): AssistantMessage => assistantMessage(content, reasoning, []);
  const streamed = (text: string, reasoning = '', hasCalls = false): StreamedReply => ({ reasoning, text, hasCalls });

  it('is all that both parsers show, without white space at its end', () => {
    expect(agreedBeginning(streamed('', 'Hmm, so \n'), message('', 'Hmm, so \n'), [])).toEqual({
      reasoning: 'Hmm, so',
      text: '',
    });
    expect(agreedBeginning(streamed('\nIt is', 'Hmm.\n'), message('It is', 'Hmm.'), [])).toEqual({
      reasoning: 'Hmm.',
      text: 'It is',
    });
  });

  it('ends where an incomplete tool call begins, which the parser of complete replies takes for text', () => {
    const whole = message('I look.\n<tool_call>\n{"na');
    expect(agreedBeginning(streamed('I look.\n'), whole, [])).toEqual({ reasoning: '', text: 'I look.' });
    expect(agreedBeginning(streamed(''), message('[{"name": "f"'), [])).toEqual({ reasoning: '', text: '' });
  });

  it('ends before a stop string and before what may become one', () => {
    expect(agreedBeginning(streamed('one two three'), message('one two three'), ['two'])).toMatchObject({
      text: 'one',
    });
    expect(agreedBeginning(streamed('one tw'), message('one tw'), ['two'])).toMatchObject({ text: 'one' });
    expect(agreedBeginning(streamed('日本語\uFFFD'), message('日本語\uFFFD'), ['本語😀'])).toMatchObject({
      text: '日',
    });
    expect(agreedBeginning(streamed('text', 'so tw'), message('text', 'so two'), ['two'])).toEqual({
      reasoning: 'so',
      text: '',
    });
    expect(agreedBeginning(streamed('text', 'so\n'), message('text', 'so\n'), ['\n\n'])).toEqual({
      reasoning: 'so\n',
      text: 'text',
    });
  });

  it.each([' ', '\uFFFD'])('is found in linear time in a text with a long run of %j', (character) => {
    const text = `a${character.repeat(1_000_000)}b`;
    expect(agreedBeginning(streamed(text), message(text), ['never'])).toEqual({ reasoning: '', text });
  });

  it('is empty when the parsers disagree on what is thinking', () => {
    expect(agreedBeginning(streamed('', 'Hmm'), message('Hmm'), [])).toEqual({ reasoning: '', text: '' });
    expect(agreedBeginning(streamed('a b', 'Hmm'), message('b', 'Hmm a'), [])).toEqual({ reasoning: '', text: '' });
  });
});
