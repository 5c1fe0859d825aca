import { serveThread } from '@floe-rl/core';
import type { Grammar } from './languages.ts';
import { parseCode } from './parse.ts';

export type ParseOperations = typeof operations;

/** A thread that parses files, so that neither long nor hostile code delays the agents of the process. */
const operations = {
  parse: ({ text, grammar }: { readonly text: string; readonly grammar: Grammar }) => parseCode(text, grammar),
};

serveThread(operations);
