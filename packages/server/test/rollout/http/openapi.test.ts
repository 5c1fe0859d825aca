import { ENVELOPE_TYPE } from '@floe-rl/core/protocol';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { API, type RouteSpec } from '../../../src/rollout/http/api.ts';
import { Caller } from '../call.ts';
import { Workbench } from '../workbench.ts';

type Content = Record<string, { schema: object }>;
type Operation = {
  security?: object[];
  requestBody?: { required: boolean; content: Content };
  responses: Record<string, { content: Content }>;
};
type OpenApiDocument = {
  security: object[];
  paths: Record<string, Record<string, Operation>>;
  components: { securitySchemes: object; schemas: object };
};

let bench: Workbench;
let caller: Caller;
beforeAll(async () => {
  bench = await Workbench.create();
  caller = new Caller((await bench.server()).server);
});
afterAll(() => bench.dispose());

async function readDocument(): Promise<OpenApiDocument> {
  return (await caller.call<OpenApiDocument>('GET', '/openapi.json')).body;
}

function operationOf(document: OpenApiDocument, route: RouteSpec): Operation | undefined {
  return document.paths[route.path.replace(':id', '{id}')]?.[route.method.toLowerCase()];
}

describe('the OpenAPI document', () => {
  it('describes every route, and its references resolve', async () => {
    const document = await readDocument();
    for (const route of Object.values<RouteSpec>(API)) expect(operationOf(document, route), route.path).toBeDefined();
    const references = [...JSON.stringify(document).matchAll(/"\$ref":"([^"]*)"/g)].map((match) => match[1] ?? '');
    expect(references.length).toBeGreaterThan(20);
    for (const reference of references) {
      const [, name] = /^#\/components\/schemas\/(\w+)$/.exec(reference) ?? [];
      expect(document.components.schemas, reference).toHaveProperty(name ?? 'a reference to something else');
    }
  });

  it('requires a bearer token for every route except those that need none', async () => {
    const document = await readDocument();
    expect(document.security).toEqual([{ token: [] }]);
    expect(document.components.securitySchemes).toEqual({ token: { type: 'http', scheme: 'bearer' } });
    for (const route of Object.values<RouteSpec>(API)) {
      expect(operationOf(document, route)?.security, route.path).toEqual(route.open === true ? [] : undefined);
    }
  });

  it('refers to the schemas of bodies in JSON, and describes other bodies as binary data of their type', async () => {
    const document = await readDocument();
    const reference = (name: string) => ({ schema: { $ref: `#/components/schemas/${name}` } });
    const submit = operationOf(document, API.submitTask);
    expect(submit?.requestBody?.content).toEqual({ 'application/json': reference('TaskRequest') });
    expect(submit?.responses[200]?.content).toEqual({ 'application/json': reference('SubmitReply') });
    expect(submit?.responses.default?.content).toEqual({ 'application/json': reference('ErrorReply') });
    expect(operationOf(document, API.deliverResult)?.requestBody).toEqual({
      required: true,
      content: { [ENVELOPE_TYPE]: { schema: { type: 'string', format: 'binary' } } },
    });
  });
});
