/** The parts of an OpenAPI document that the pages about the API need. */
export type OpenApi = {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: { readonly schemas: Readonly<Record<string, Schema>> };
};

type Operation = {
  readonly operationId: string;
  readonly summary: string;
  readonly parameters?: readonly Parameter[];
  readonly requestBody?: { readonly content: Content };
  readonly responses: Readonly<Record<string, { readonly content?: Content }>>;
};

type Content = Readonly<Record<string, { readonly schema: Schema }>>;
type Parameter = { readonly name: string; readonly in: string; readonly required?: boolean; readonly schema: Schema };

type Schema = {
  readonly $ref?: string;
  readonly type?: string | readonly string[];
  readonly description?: string;
  readonly default?: unknown;
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly anyOf?: readonly Schema[];
  readonly oneOf?: readonly Schema[];
  readonly allOf?: readonly Schema[];
  readonly items?: Schema;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: Schema | boolean;
  readonly required?: readonly string[];
  readonly minimum?: number;
  readonly format?: string;
  readonly examples?: readonly unknown[];
};

/** A call of the API for the page that sends requests. `sample` is a body with the required fields; `null` for a call without a JSON body. */
export type CallForm = {
  readonly id: string;
  readonly method: string;
  readonly path: string;
  readonly summary: string;
  readonly parameters: readonly {
    readonly name: string;
    readonly in: string;
    readonly required: boolean;
    readonly hint: string;
  }[];
  readonly sample: unknown;
  readonly media: string | null;
};

/** Returns the reference of the API in Markdown: every call, then every schema with its fields. */
export function apiReference(api: OpenApi): string {
  return [
    '# HTTP API reference',
    '',
    'Every call of the rollout server and every field of its bodies, from [openapi.json](openapi.json). [HTTP API](api.md) explains the',
    'calls; [try the API](try-the-api.md) sends them.',
    '',
    '## Calls',
    '',
    ...operations(api).flatMap(([method, path, operation]) => callLines(method, path, operation)),
    '## Schemas',
    '',
    ...Object.entries(api.components.schemas).flatMap(([name, schema]) => schemaLines(name, schema)),
  ].join('\n');
}

/** The text of the page that sends requests. Its form is made by a script. */
export const TRY_PAGE = `# Try the API

This page sends a request from your browser to a floe server. Choose a call, fill in its parameters, and send it. The body is filled in from
the [schema](api-reference.md). The token stays in this page. The request as a command for a terminal is below the form.

A browser sends requests only to servers that permit the page: add the address of this site to
\`server.page_origins\` in the server's [configuration](configuration.md), or \`"null"\` when you opened this page as a file.
`;

/** Returns the calls for the page that sends requests. */
export function callForms(api: OpenApi): CallForm[] {
  return operations(api).map(([method, path, { operationId, summary, parameters = [], requestBody }]) => {
    const [media = null] = Object.keys(requestBody?.content ?? {});
    const body = requestBody?.content['application/json']?.schema;
    return {
      id: operationId,
      method,
      path,
      summary,
      parameters: parameters.map(({ name, in: place, required = false, schema }) => ({
        name,
        in: place,
        required,
        hint: [typeOf(schema), schema.default === undefined ? '' : `default ${JSON.stringify(schema.default)}`]
          .filter((text) => text !== '')
          .join(', ')
          .replaceAll('`', ''),
      })),
      sample: body === undefined ? null : sampleOf(body, api),
      media,
    };
  });
}

/** Returns a value with the required fields of a schema: its first example, its default, or a value of its type. */
function sampleOf(schema: Schema, api: OpenApi): unknown {
  if (schema.$ref !== undefined) return sampleOf(resolved(schema.$ref, api), api);
  if (schema.examples !== undefined) return schema.examples[0];
  if (schema.default !== undefined) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum !== undefined) return schema.enum[0];
  const [variant] = schema.anyOf ?? schema.oneOf ?? schema.allOf ?? [];
  if (variant !== undefined) return sampleOf(variant, api);
  switch ([schema.type].flat()[0]) {
    case 'object':
      return Object.fromEntries(
        Object.entries(schema.properties ?? {})
          .filter(([name, property]) => (schema.required ?? []).includes(name) && property.default === undefined)
          .map(([name, property]) => [name, sampleOf(property, api)]),
      );
    case 'array':
      return [];
    case 'string':
      return schema.format === 'uri' ? 'http://127.0.0.1:8000' : 'text';
    case 'integer':
    case 'number':
      return Math.max(0, schema.minimum ?? 0);
    case 'boolean':
      return false;
    default:
      return null;
  }
}

function operations({ paths }: OpenApi): [method: string, path: string, operation: Operation][] {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]): [string, string, Operation] => [
      method.toUpperCase(),
      path,
      operation,
    ]),
  );
}

function callLines(method: string, path: string, operation: Operation): string[] {
  const { summary, parameters = [], requestBody, responses } = operation;
  const rows = parameters.map(({ name, in: place, required, schema }) =>
    tableRow(`\`${name}\``, place, typeOf(schema), required ? 'required' : defaultOf(schema), schema.description ?? ''),
  );
  const table = ['| Parameter | In | Value | Default | Meaning |', '|---|---|---|---|---|', ...rows, ''];
  const body = contentText(requestBody?.content);
  const reply = contentText(responses['200']?.content);
  return [
    `### ${method} ${path}`,
    '',
    summary,
    '',
    ...(rows.length === 0 ? [] : table),
    `${body === '' ? '' : `Body: ${body}. `}Reply: ${reply === '' ? 'none' : reply}.`,
    '',
  ];
}

function contentText(content: Content | undefined): string {
  return Object.entries(content ?? {})
    .map(([media, { schema }]) => (media === 'application/json' ? typeOf(schema) : `${typeOf(schema)} as \`${media}\``))
    .join(' or ');
}

function schemaLines(name: string, schema: Schema): string[] {
  const required = schema.required ?? [];
  const rows = Object.entries(schema.properties ?? {}).map(([key, property]) =>
    tableRow(
      `\`${key}\``,
      typeOf(property),
      required.includes(key) && property.default === undefined ? 'required' : defaultOf(property),
      property.description ?? '',
    ),
  );
  const table = ['| Field | Value | Default | Meaning |', '|---|---|---|---|', ...rows, ''];
  const about = schema.description === undefined ? [] : [schema.description, ''];
  return [`### ${name}`, '', ...about, ...(rows.length === 0 ? [`Value: ${typeOf(schema)}.`, ''] : table)];
}

function typeOf(schema: Schema): string {
  if (schema.$ref !== undefined) {
    const name = nameOf(schema.$ref);
    return `[${name}](#${name.toLowerCase()})`;
  }
  if (schema.const !== undefined) return `\`${String(schema.const)}\``;
  if (schema.enum !== undefined) return schema.enum.map((value) => `\`${String(value)}\``).join(', ');
  const variants = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (variants !== undefined) return [...new Set(variants.map(typeOf))].join(' or ');
  if (schema.type === 'array') return `list of ${typeOf(schema.items ?? {})}`;
  if (schema.type === 'object' && schema.properties !== undefined) {
    const keys = Object.entries(schema.properties).map(([key, property]) => `\`${key}\`: ${typeOf(property)}`);
    return `{ ${keys.join(', ')} }`;
  }
  return [schema.type ?? 'any'].flat().join(' or ');
}

function defaultOf({ default: value }: Schema): string {
  if (value === undefined || (typeof value === 'object' && value !== null)) return '';
  return `\`${String(value)}\``;
}

function tableRow(...cells: readonly string[]): string {
  return `| ${cells.map((cell) => cell.replaceAll('|', '\\|').replaceAll('\n', ' ')).join(' | ')} |`;
}

function nameOf(ref: string): string {
  return ref.slice(ref.lastIndexOf('/') + 1);
}

function resolved(ref: string, api: OpenApi): Schema {
  const schema = api.components.schemas[nameOf(ref)];
  if (schema === undefined) throw new Error(`openapi.json has no schema ${ref}`);
  return schema;
}
