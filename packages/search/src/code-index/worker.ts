import { parentPort } from 'node:worker_threads';
import { asFloeError } from '@floe-rl/core';
import { parseCode } from './parse.ts';
import type { ParseReply, ParseRequest } from './parser.ts';

/** A thread that parses files, so that long or hostile code does not delay the agents of the process. */
parentPort?.on('message', ({ number, text, grammar }: ParseRequest) => {
  parseCode(text, grammar).then(
    (parsed) => parentPort?.postMessage({ number, parsed } satisfies ParseReply),
    (thrown: unknown) => {
      const { code, message } = asFloeError(thrown);
      parentPort?.postMessage({ number, error: { code, message } } satisfies ParseReply);
    },
  );
});
