import { describe, expect, it } from 'vitest';
import { gemini } from '../../../src/dialects/gemini/dialect.ts';
import { matchRoute } from '../../../src/dialects/registry.ts';

describe('the paths of the dialect', () => {
  it.each(['/v1beta', '/v1'])('include generation, streams, counts and the model below %s', (version) => {
    const headers = { 'x-goog-api-key': 'k' };
    const at = (verb: string) => matchRoute('POST', `${version}/models/gemini-2.5:${verb}`, {});
    const found = { found: true, dialect: gemini, model: 'gemini-2.5' };
    expect(at('generateContent')).toMatchObject({ ...found, kind: 'generate', stream: false });
    expect(at('streamGenerateContent')).toMatchObject({ ...found, kind: 'generate', stream: true });
    expect(at('countTokens')).toMatchObject({ ...found, kind: 'count_tokens' });
    expect(matchRoute('GET', `${version}/models`, headers)).toMatchObject({ dialect: gemini, kind: 'models' });
    expect(matchRoute('GET', `${version}/models/m`, headers)).toMatchObject({
      dialect: gemini,
      kind: 'model',
      model: 'm',
    });
  });

  it.each([
    ['POST', '/v1beta/models/m:embedContent', {}],
    ['POST', '/v1beta/cachedContents', {}],
    ['POST', '/v1beta/files', {}],
    ['POST', '/v1/models/m:batchGenerateContent', {}],
    ['GET', '/v1/unknown', { 'x-goog-api-key': 'k' }],
  ])('do not include %s %s, which is refused with an error of this dialect', (method, path, headers) => {
    expect(matchRoute(method, path, headers)).toEqual({ found: false, dialect: gemini, allow: [] });
  });

  it('may contain a model name with slashes and colons', () => {
    for (const model of ['org/model', 'org/model:7b', 'a/b/c']) {
      for (const version of ['/v1beta', '/v1']) {
        const path = `${version}/models/${model}:streamGenerateContent`;
        expect(matchRoute('POST', path, {})).toMatchObject({ found: true, dialect: gemini, model, stream: true });
      }
    }
    expect(matchRoute('GET', '/v1beta/models/org/model', {})).toEqual({ found: false, dialect: gemini, allow: [] });
  });

  it('do not include those of other dialects', () => {
    const headers = { 'x-goog-api-key': 'k' };
    expect(matchRoute('POST', '/v1/chat/completions', headers).dialect.name).toBe('openai_chat');
    expect(matchRoute('POST', '/v1/messages', headers).dialect.name).toBe('anthropic');
    expect(matchRoute('GET', '/v1/models', {}).dialect.name).toBe('openai_chat');
    expect(matchRoute('GET', '/v1/models', { ...headers, 'anthropic-version': 'x' }).dialect.name).toBe('anthropic');
    expect(matchRoute('GET', '/v1beta/models/m:generateContent', {})).toMatchObject({ found: false, allow: ['POST'] });
  });
});

it('the model list names the model as a resource, with its context window when it is known', () => {
  const model = {
    name: 'models/policy',
    displayName: 'policy',
    version: '1',
    inputTokenLimit: 100,
    outputTokenLimit: 100,
    supportedGenerationMethods: ['generateContent', 'streamGenerateContent', 'countTokens'],
  };
  expect(JSON.parse(gemini.encodeModels('policy', 100))).toEqual({ models: [model] });
  expect(JSON.parse(gemini.encodeModel('policy', 100))).toEqual(model);
  expect(JSON.parse(gemini.encodeModel('policy', null))).not.toHaveProperty('inputTokenLimit');
});
