import { FloeError } from '@floe-rl/core';
import { chatMessageSchema, chatToolSchema } from '@floe-rl/core/schema';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { runs } from '../../../../test/effort.ts';
import { strangeBody } from '../../../../verify/fuzz/bodies.ts';
import { type CallContext, type CanonicalReply, plainContext } from '../../src/dialects/dialect.ts';
import { DIALECTS } from '../../src/dialects/registry.ts';
import { streamOf } from './whole-stream.ts';

const context: CallContext = {
  ...plainContext(),
  query: new URLSearchParams('alt=sse'),
  model: 'policy',
  stream: true,
};

/** Makes a reply with two calls to the tool `name`. */
function replyCalling(name: string): CanonicalReply {
  return {
    completionId: 'cpl_1',
    model: 'policy',
    createdMs: 0,
    promptTokens: 1,
    message: {
      role: 'assistant',
      content: 'a\n\ndata: b',
      reasoning_content: 'c',
      tool_calls: [
        { id: 'x', type: 'function', function: { name, arguments: '{"input": "d"}' } },
        { id: 'y', type: 'function', function: { name, arguments: '{"cut": ' } },
      ],
    },
    finishReason: 'tool_calls',
    stopText: null,
    usage: { prompt_tokens: 1, completion_tokens: 1, cached_tokens: null },
  };
}

describe.each(DIALECTS.map((dialect) => [dialect.name, dialect] as const))(
  'any request body of the dialect %s',
  (name, dialect) => {
    it('is either refused with a client error or becomes a valid canonical request whose reply can be encoded', () => {
      let accepted = 0;
      fc.assert(
        fc.property(strangeBody(name), (input) => {
          // The random value is encoded as JSON and parsed again, because a request body cannot contain values without a JSON form.
          const foreign: unknown = JSON.parse(JSON.stringify(input) ?? 'null');
          for (const parse of [dialect.parseRequest, dialect.parseCount]) {
            try {
              const request = parse(foreign, context);
              expect(request.messages.length).toBeGreaterThan(0);
              for (const entry of request.messages) expect(chatMessageSchema.parse(entry)).toEqual(entry);
              for (const tool of request.tools) chatToolSchema.parse(tool);
              const reply = replyCalling(request.tools[0]?.function.name ?? 'f');
              JSON.parse(dialect.encodeReply(reply, request));
              streamOf(dialect, reply, request);
              accepted++;
            } catch (error) {
              if (!FloeError.is(error)) throw error;
              expect(dialect.encodeError(error).status).toBe(400);
            }
          }
        }),
        { numRuns: runs(2_000) },
      );
      expect(accepted).toBeGreaterThan(runs(2_000) / 10);
    });
  },
);
