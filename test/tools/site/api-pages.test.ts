import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { API, type RouteSpec } from '#server/rollout/http/api';
import { repositoryRoot } from '../../../tools/repository.ts';
import { apiReference, callForms, type OpenApi } from '../../../tools/site/api-pages.ts';

const api = JSON.parse(readFileSync(join(repositoryRoot(), 'docs', 'openapi.json'), 'utf8')) as OpenApi;

describe('the pages about the API', () => {
  it('have every call of the server, and a body for each that takes JSON which the server accepts', () => {
    const forms = callForms(api);
    expect(forms.map(({ id }) => id).sort()).toEqual(Object.keys(API).sort());
    const refused = forms.flatMap(({ id, sample }) => {
      const { body } = API[id as keyof typeof API] as RouteSpec;
      if (body === undefined) return [];
      const parsed = body.safeParse(sample);
      return parsed.success ? [] : [`${id}: ${parsed.error.message}`];
    });
    expect(refused).toEqual([]);
  });

  it('link every schema that they name', () => {
    const page = apiReference(api);
    const headings = new Set([...page.matchAll(/^### (\w+)$/gm)].map(([, name = '']) => name.toLowerCase()));
    const linked = [...page.matchAll(/\]\(#(\w+)\)/g)].map(([, name = '']) => name);
    expect(linked.length).toBeGreaterThan(100);
    expect(linked.filter((name) => !headings.has(name))).toEqual([]);
  });
});
