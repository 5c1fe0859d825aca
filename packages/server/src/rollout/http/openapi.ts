import * as schemas from '@floe-rl/core/schema';
import { z } from 'zod';
import { API, type RouteSpec } from './api.ts';

type JsonObject = { [key: string]: unknown };

const VERSION = '0.1.0';

/** Generates the OpenAPI 3.1 document of the control API from the API table and the schemas. */
export function openApi(): JsonObject {
  const registry = componentRegistry();
  const paths: Record<string, JsonObject> = {};
  for (const [name, route] of Object.entries<RouteSpec>(API)) {
    const path = route.path.replace(':id', '{id}');
    paths[path] = { ...paths[path], [route.method.toLowerCase()]: operation(name, route, registry) };
  }
  return {
    openapi: '3.1.0',
    info: { title: 'floe control API', version: VERSION },
    security: [{ token: [] }],
    paths,
    components: {
      securitySchemes: { token: { type: 'http', scheme: 'bearer' } },
      schemas: componentsOf(registry, 'input'),
    },
  };
}

function operation(name: string, route: RouteSpec, registry: Registry): JsonObject {
  const media = route.media ?? ['application/json'];
  const reply = jsonSchema(route.reply, registry, 'output');
  return {
    operationId: name,
    summary: route.summary,
    ...(route.open === true ? { security: [] } : {}),
    parameters: [...pathParameters(route), ...queryParameters(route, registry)],
    ...requestBody(route, registry),
    responses: {
      200: { description: 'OK', content: Object.fromEntries(media.map((type) => [type, { schema: reply }])) },
      default: {
        description: 'The request was refused; errors.md lists the codes.',
        content: { 'application/json': { schema: jsonSchema(schemas.errorReplySchema, registry, 'output') } },
      },
    },
  };
}

function requestBody(route: RouteSpec, registry: Registry): JsonObject {
  if (route.rawBody !== undefined) {
    return {
      requestBody: { required: true, content: { [route.rawBody]: { schema: { type: 'string', format: 'binary' } } } },
    };
  }
  if (route.body === undefined) return {};
  const schema = jsonSchema(route.body, registry, 'input');
  return { requestBody: { required: true, content: { 'application/json': { schema } } } };
}

function pathParameters(route: RouteSpec): JsonObject[] {
  if (!route.path.includes(':id')) return [];
  return [{ name: 'id', in: 'path', required: true, schema: { type: 'string' } }];
}

function queryParameters(route: RouteSpec, registry: Registry): JsonObject[] {
  return Object.entries(route.query?.shape ?? {}).map(([name, schema]) => ({
    name,
    in: 'query',
    schema: jsonSchema(schema as z.ZodType, registry, 'input'),
  }));
}

type Registry = ReturnType<typeof z.registry<{ id: string }>>;

/** Returns the OpenAPI component name of an exported schema, such as `TaskRequest` for `taskRequestSchema`. */
function componentName(exported: string): string {
  const name = exported.replace(/Schema$/, '');
  return name.charAt(0).toUpperCase() + name.slice(1);
}

function referenceTo(componentId: string): string {
  return `#/components/schemas/${componentId}`;
}

/** Returns a JSON schema: a reference when the schema is a named component, otherwise the schema itself. */
function jsonSchema(schema: z.ZodType, registry: Registry, io: 'input' | 'output'): unknown {
  const component = registry.get(schema);
  if (component !== undefined) return { $ref: referenceTo(component.id) };
  const { $schema: _, ...inline } = z.toJSONSchema(schema, { io });
  return inline;
}

/**
 * Returns the JSON schema of each component. With `io` as `input`, fields with a default are optional, because requests may leave them out.
 * With `output` they are required, because replies always have them.
 */
export function componentSchemas(io: 'input' | 'output'): JsonObject {
  return componentsOf(componentRegistry(), io);
}

function componentRegistry(): Registry {
  const registry = z.registry<{ id: string }>();
  for (const [name, schema] of Object.entries(schemas)) {
    if (schema instanceof z.ZodType) registry.add(schema, { id: componentName(name) });
  }
  return registry;
}

function componentsOf(registry: Registry, io: 'input' | 'output'): JsonObject {
  // A value that floe converts when it parses a request has no output schema. Replies contain no such value.
  const unrepresentable = io === 'output' ? 'any' : 'throw';
  const { schemas: generated } = z.toJSONSchema(registry, { io, uri: referenceTo, unrepresentable });
  return Object.fromEntries(Object.entries(generated).map(([id, { $schema: _, $id: __, ...schema }]) => [id, schema]));
}
