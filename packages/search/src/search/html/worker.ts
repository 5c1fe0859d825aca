import { serveThread } from '@floe-rl/core';
import { pageText } from './page-text.ts';

export type PageOperations = typeof operations;

/** A thread that reads one page, so that it can be stopped when the page takes too long. */
const operations = { read: pageText };

serveThread(operations);
