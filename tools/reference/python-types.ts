import { ADVANTAGE_METHODS, CONSTRAINED_USES, FORMAT_NAMES } from '@floe-rl/data/trainers';
import { componentSchemas } from '#server/rollout/http/openapi';

/** The part of JSON Schema that describes the values of the API. */
type JsonSchema = {
  readonly $ref?: string | undefined;
  readonly type?: string | readonly string[] | undefined;
  readonly properties?: Readonly<Record<string, JsonSchema>> | undefined;
  readonly required?: readonly string[] | undefined;
  readonly additionalProperties?: boolean | JsonSchema | undefined;
  readonly propertyNames?: JsonSchema | undefined;
  readonly items?: JsonSchema | undefined;
  readonly anyOf?: readonly JsonSchema[] | undefined;
  readonly oneOf?: readonly JsonSchema[] | undefined;
  readonly enum?: readonly (string | number)[] | undefined;
  readonly const?: string | number | boolean | undefined;
  readonly description?: string | undefined;
  readonly default?: unknown;
};

/** Components of the API that the client sends. Fields with a default may be absent. */
const REQUESTS = ['TaskRequest', 'BatchStreamRequest', 'EngineSpec'];
/** Components of the API that the client returns. */
const REPLIES = [
  'SubmitReply',
  'TaskStatus',
  'TaskSummary',
  'SessionResult',
  'SessionView',
  'AttemptView',
  'BatchReply',
  'BatchRowsReply',
  'BatchStreamView',
  'EnginesStatus',
  'EngineChange',
  'RolloutStatus',
];
/**
 * Python names of types whose generated name would be hard to understand. A generated name is made from the component or from a place in it.
 */
const NAMES: Readonly<Record<string, string>> = {
  BatchReplyGroup: 'Group',
  BatchReplyProgress: 'BatchProgress',
  BatchRowsReply: 'PushReply',
  PushReplyInvalid: 'RowProblem',
  EngineChangeProblem: 'EngineProblem',
};
/** Types of values whose schema accepts anything, because the server passes them on as they were stored. */
const STORED: Readonly<Record<string, string>> = {
  BatchReplyGroupResults: 'List[SessionResult]',
  BatchReplyRecords: 'List[Json]',
};
/** Choices for parameters of `next_batch`, which have no component in the API. */
const CHOICES: Readonly<Record<string, readonly string[]>> = {
  FormatName: FORMAT_NAMES,
  AdvantageMethod: ADVANTAGE_METHODS,
  ConstrainedUse: CONSTRAINED_USES,
};
const SCALARS: Readonly<Record<string, string>> = {
  string: 'str',
  integer: 'int',
  number: 'float',
  boolean: 'bool',
  null: 'None',
};
const WIDTH = 140;

/** Renders python/src/floe/api_types.py: a type for each request and reply of the Python client, from the schemas of the API. */
export function pythonTypes(): string {
  const types = new PythonTypes();
  for (const name of REQUESTS) types.add('input', name);
  for (const name of REPLIES) types.add('output', name);
  types.addBatch();
  const choices = Object.entries(CHOICES).map(([name, values]) => `${name} = ${literal(values)}`);
  return [
    '"""Types of the requests and replies of the client. Generated from the schemas of the API by `npm run generate`."""',
    '',
    'from __future__ import annotations',
    '',
    'from typing import Any, Dict, List, Literal, Mapping, Optional, Sequence, TypedDict, Union',
    '',
    ...types.classes.flatMap((text) => ['', text, '']),
    '',
    '#: An object of JSON.',
    'Json = Dict[str, Any]',
    [...choices, ...types.aliases].map(wrapped).join('\n'),
    '',
  ].join('\n');
}

/** Collects the definitions. Objects become classes, and other components become aliases. Plain texts, numbers and maps have no name. */
class PythonTypes {
  readonly classes: string[] = [];
  /** Each alias follows the aliases that it uses. All follow the classes, because Python evaluates them when the module is imported. */
  readonly aliases: string[] = [];
  readonly #components = {
    input: componentSchemas('input') as Readonly<Record<string, JsonSchema>>,
    output: componentSchemas('output') as Readonly<Record<string, JsonSchema>>,
  };
  /** The type of each component that was added, by its name in the API. */
  readonly #added = new Map<string, string>();
  /** Names of the classes by their fields: equal objects in two places are one class. */
  readonly #classNames = new Map<string, string>();

  add(io: 'input' | 'output', component: string): string {
    const known = this.#added.get(`${io} ${component}`);
    if (known !== undefined) return known;
    const schema = this.#components[io][component];
    if (schema === undefined) throw new Error(`the API has no component ${component}`);
    const name = NAMES[component] ?? component;
    // An object may contain itself, so its name is set before its fields are read.
    if (schema.properties !== undefined) this.#added.set(`${io} ${component}`, name);
    const type = this.#typeOf(io, schema, name);
    const isNamed = schema.enum !== undefined || schema.anyOf !== undefined || schema.oneOf !== undefined;
    const alias = `${name} = ${type}`;
    if (isNamed && !this.aliases.includes(alias)) this.aliases.push(alias);
    this.#added.set(`${io} ${component}`, isNamed ? name : type);
    return isNamed ? name : type;
  }

  /** Adds the type of a batch that was handed out: a reply whose `batch` is not None. */
  addBatch(): void {
    const reply = this.classes.find((text) => text.includes('class BatchReply('));
    const batch = reply
      ?.replaceAll('BatchReply', 'Batch')
      .replace(/#: number of the batch.*\n {4}batch: Optional\[int\]\n/, '#: number of the batch\n    batch: int\n');
    if (!batch?.includes('    batch: int\n')) throw new Error('BatchReply has no field `batch` that may be null');
    this.classes.push(batch);
  }

  /** Returns the type of a value. Objects in it without a component get a name that begins with `place`. */
  #typeOf(io: 'input' | 'output', schema: JsonSchema, place: string): string {
    const stored = STORED[place];
    if (stored !== undefined) return stored;
    if (schema.$ref !== undefined) return this.add(io, schema.$ref.split('/').at(-1) ?? '');
    if (schema.const !== undefined) return literal([schema.const]);
    if (schema.enum !== undefined) return literal(schema.enum);
    const choices = schema.anyOf ?? schema.oneOf;
    if (choices !== undefined) return union(choices.map((one) => this.#typeOf(io, one, placeOf(one, place, choices))));
    if (Array.isArray(schema.type)) {
      return union(schema.type.map((type: string) => this.#typeOf(io, { ...schema, type }, place)));
    }
    if (schema.properties !== undefined) return this.#classOf(io, schema, place);
    if (schema.type === 'array') {
      const item = this.#typeOf(io, schema.items ?? {}, singular(place));
      return io === 'input' ? `Sequence[${item}]` : `List[${item}]`;
    }
    if (schema.type === 'object') {
      const values = typeof schema.additionalProperties === 'object' ? schema.additionalProperties : {};
      const key = this.#typeOf(io, schema.propertyNames ?? { type: 'string' }, place);
      return `${io === 'input' ? 'Mapping' : 'Dict'}[${key}, ${this.#typeOf(io, values, singular(place))}]`;
    }
    return SCALARS[String(schema.type)] ?? 'Any';
  }

  #classOf(io: 'input' | 'output', schema: JsonSchema, place: string): string {
    const needed = new Set(schema.required);
    const required: string[] = [];
    const optional: string[] = [];
    for (const [field, value] of Object.entries(schema.properties ?? {})) {
      const type = this.#typeOf(io, value, `${place}${pascal(field)}`);
      (needed.has(field) ? required : optional).push(...fieldComment(value, io), `    ${field}: ${type}`);
    }
    const fields = [...required, '', ...optional].join('\n');
    const name = this.#classNames.get(fields) ?? NAMES[place] ?? place;
    if (this.#classNames.has(fields)) return name;
    if ([...this.#classNames.values()].includes(name)) throw new Error(`two Python types would be named ${name}`);
    this.#classNames.set(fields, name);
    const isMixed = required.length > 0 && optional.length > 0;
    const base = isMixed ? `_${name}Required` : 'TypedDict';
    const first = isMixed ? [`class ${base}(TypedDict):`, ...required, '', ''] : [];
    const total = optional.length > 0 ? ', total=False' : '';
    const own = isMixed ? optional : [...required, ...optional];
    this.classes.push([...first, `class ${name}(${base}${total}):`, ...own].join('\n'));
    return name;
  }
}

/** Returns the name for one of several choices. When a field distinguishes the choices, the name contains the value of this field. */
function placeOf(choice: JsonSchema, place: string, choices: readonly JsonSchema[]): string {
  if (choices.filter(({ properties }) => properties !== undefined).length < 2) return place;
  const kind = Object.values(choice.properties ?? {}).find((value) => (value.const ?? value.enum) !== undefined);
  return `${place}${pascal(String(kind?.const ?? kind?.enum?.[0] ?? ''))}`;
}

function union(types: readonly string[]): string {
  const all = [...new Set(types)].filter((type) => type !== 'None');
  const [only = 'None'] = all;
  const type = all.length > 1 ? `Union[${all.join(', ')}]` : only;
  return types.includes('None') && type !== 'Any' ? `Optional[${type}]` : type;
}

function literal(values: readonly (string | number | boolean)[]): string {
  return `Literal[${values.map(constant).join(', ')}]`;
}

function constant(value: string | number | boolean): string {
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  return JSON.stringify(value);
}

/** Returns the description of a field as a comment, for a request with the default. The descriptions explain what `null` means. */
function fieldComment({ description, default: preset }: JsonSchema, io: 'input' | 'output'): string[] {
  const isSimple = typeof preset === 'string' || typeof preset === 'number' || typeof preset === 'boolean';
  const initial = io === 'input' && isSimple ? `Default: ${constant(preset)}` : '';
  const text = [description, initial].filter(Boolean).join('. ');
  if (text === '') return [];
  const lines = [''];
  for (const word of text.split(/\s+/)) {
    const line = lines.at(-1) ?? '';
    if (line.length + word.length > WIDTH - 8) lines.push(word);
    else lines[lines.length - 1] = line === '' ? word : `${line} ${word}`;
  }
  return lines.map((line) => `    #: ${line}`);
}

/** Returns an alias of several choices. If it is too long for one line, each choice is on a line of its own. */
function wrapped(alias: string): string {
  const [, start = '', choices = ''] = /^(.*? = \w+\[)(.*)\]$/.exec(alias) ?? [];
  if (alias.length <= WIDTH) return alias;
  return [start, ...choices.split(', ').map((choice) => `    ${choice},`), ']'].join('\n');
}

function pascal(text: string): string {
  return text
    .split(/[^A-Za-z0-9]+/)
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1))
    .join('');
}

function singular(name: string): string {
  return name.replace(/ies$/, 'y').replace(/(?<=ss)es$|(?<![su])s$/, '');
}
