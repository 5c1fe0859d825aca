import type { Dialect, Route } from '../dialect.ts';
import { clientStatus } from '../errors.ts';
import { errorJson } from './errors.ts';
import { encodeGenerateReply } from './reply.ts';
import { parseCountRequest, parseGenerateRequest } from './request.ts';
import { generateStreamType, openGenerateStream } from './stream.ts';

/** The dialect of Google's Generative Language API, as Gemini CLI and the `@google/genai` clients use it. */
export const gemini: Dialect = {
  name: 'gemini',
  routes: ['/v1beta', '/v1'].flatMap((version): Route[] => [
    { method: 'POST', path: `${version}/models/{model}:generateContent`, kind: 'generate', stream: false },
    { method: 'POST', path: `${version}/models/{model}:streamGenerateContent`, kind: 'generate', stream: true },
    { method: 'POST', path: `${version}/models/{model}:countTokens`, kind: 'count_tokens' },
    { method: 'GET', path: `${version}/models`, kind: 'models' },
    { method: 'GET', path: `${version}/models/{model}`, kind: 'model' },
  ]),
  parseRequest: parseGenerateRequest,
  parseCount: parseCountRequest,
  encodeReply: encodeGenerateReply,
  openStream: openGenerateStream,
  streamType: generateStreamType,
  encodeModels: (model, maxModelLen) => JSON.stringify({ models: [modelObject(model, maxModelLen)] }),
  encodeModel: (model, maxModelLen) => JSON.stringify(modelObject(model, maxModelLen)),
  encodeCount: (tokens) => JSON.stringify({ totalTokens: tokens }),
  encodeError: (error) => ({ status: clientStatus(error), body: errorJson(error) }),
};

function modelObject(model: string, maxModelLen: number | null): object {
  // Prompt and reply share one context window, so each of them may be as long as the window.
  const limits = maxModelLen === null ? {} : { inputTokenLimit: maxModelLen, outputTokenLimit: maxModelLen };
  return {
    name: `models/${model}`,
    displayName: model,
    version: '1',
    ...limits,
    supportedGenerationMethods: ['generateContent', 'streamGenerateContent', 'countTokens'],
  };
}
