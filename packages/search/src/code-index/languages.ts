/** Names of grammars of the package @vscode/tree-sitter-wasm. */
export type Grammar = keyof typeof QUERIES;

/** Grammars by file name extension. */
const EXTENSIONS: Readonly<Record<string, Grammar>> = {
  ...{
    '.py': 'python',
    '.pyi': 'python',
    '.go': 'go',
    '.java': 'java',
    '.rs': 'rust',
    '.rb': 'ruby',
    '.php': 'php',
    '.cs': 'c-sharp',
  },
  ...{ '.js': 'javascript', '.jsx': 'javascript', '.mjs': 'javascript', '.cjs': 'javascript' },
  ...{ '.ts': 'typescript', '.mts': 'typescript', '.cts': 'typescript', '.tsx': 'tsx' },
  ...{
    '.c': 'cpp',
    '.h': 'cpp',
    '.cc': 'cpp',
    '.cpp': 'cpp',
    '.cxx': 'cpp',
    '.hh': 'cpp',
    '.hpp': 'cpp',
    '.hxx': 'cpp',
  },
  ...{ '.sh': 'bash', '.bash': 'bash' },
};

/** Extensions of the files that are indexed. */
export const CODE_EXTENSIONS: readonly string[] = Object.keys(EXTENSIONS);

/** Returns the grammar of a file; `null` when no grammar can parse the file. */
export function grammarOf(path: string): Grammar | null {
  return EXTENSIONS[/\.[a-z]+$/.exec(path)?.[0] ?? ''] ?? null;
}

const JAVASCRIPT = `
(class_declaration name: (identifier) @name) @class
(function_declaration name: (identifier) @name) @function
(generator_function_declaration name: (identifier) @name) @function
(method_definition name: (property_identifier) @name) @method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @function
(call_expression function: [(identifier) @reference (member_expression property: (property_identifier) @reference)])
(new_expression constructor: (identifier) @reference)
(import_specifier name: (identifier) @reference)`;

const TYPESCRIPT = `
${JAVASCRIPT.replace('(class_declaration name: (identifier)', '(class_declaration name: (type_identifier)')}
(abstract_class_declaration name: (type_identifier) @name) @class
(interface_declaration name: (type_identifier) @name) @interface
(type_alias_declaration name: (type_identifier) @name) @type
(enum_declaration name: (identifier) @name) @enum`;

/**
 * Tree-sitter queries that find the definitions and references in code, by language. A definition is captured by its kind, with `@name` in it.
 * Every other use of a name that may be defined somewhere is captured as `@reference`.
 */
const QUERIES = {
  python: `
(class_definition name: (identifier) @name) @class
(function_definition name: (identifier) @name) @function
(module (expression_statement (assignment left: (identifier) @name) @variable))
(call function: [(identifier) @reference (attribute attribute: (identifier) @reference)])
(class_definition superclasses: (argument_list [(identifier) @reference (attribute attribute: (identifier) @reference)]))
(import_from_statement name: (dotted_name (identifier) @reference))`,
  javascript: JAVASCRIPT,
  typescript: TYPESCRIPT,
  tsx: TYPESCRIPT,
  go: `
(function_declaration name: (identifier) @name) @function
(method_declaration name: (field_identifier) @name) @method
(type_spec name: (type_identifier) @name) @type
(const_spec name: (identifier) @name) @constant
(call_expression function: [(identifier) @reference (selector_expression field: (field_identifier) @reference)])
(type_identifier) @reference`,
  java: `
(class_declaration name: (identifier) @name) @class
(interface_declaration name: (identifier) @name) @interface
(enum_declaration name: (identifier) @name) @enum
(record_declaration name: (identifier) @name) @class
(method_declaration name: (identifier) @name) @method
(constructor_declaration name: (identifier) @name) @method
(method_invocation name: (identifier) @reference)
(object_creation_expression type: (type_identifier) @reference)
(type_identifier) @reference`,
  rust: `
(function_item name: (identifier) @name) @function
(struct_item name: (type_identifier) @name) @struct
(enum_item name: (type_identifier) @name) @enum
(trait_item name: (type_identifier) @name) @trait
(mod_item name: (identifier) @name) @module
(impl_item type: (type_identifier) @name) @impl
(macro_definition name: (identifier) @name) @macro
(const_item name: (identifier) @name) @constant
(call_expression function: [(identifier) @reference (field_expression field: (field_identifier) @reference) (scoped_identifier name: (identifier) @reference)])
(macro_invocation macro: (identifier) @reference)`,
  cpp: `
(function_definition declarator: (function_declarator declarator: [(identifier) (field_identifier)] @name)) @function
(function_definition declarator: (function_declarator declarator: (qualified_identifier name: (identifier) @name))) @function
(function_definition declarator: (pointer_declarator declarator: (function_declarator declarator: (identifier) @name))) @function
(class_specifier name: (type_identifier) @name body: (_)) @class
(struct_specifier name: (type_identifier) @name body: (_)) @struct
(enum_specifier name: (type_identifier) @name body: (_)) @enum
(namespace_definition name: (namespace_identifier) @name) @namespace
(type_definition declarator: (type_identifier) @name) @type
(preproc_def name: (identifier) @name) @macro
(preproc_function_def name: (identifier) @name) @macro
(call_expression function: [(identifier) @reference (field_expression field: (field_identifier) @reference) (qualified_identifier name: (identifier) @reference)])`,
  ruby: `
(class name: (constant) @name) @class
(module name: (constant) @name) @module
(method name: (identifier) @name) @method
(singleton_method name: (identifier) @name) @method
(call method: (identifier) @reference)`,
  php: `
(class_declaration name: (name) @name) @class
(interface_declaration name: (name) @name) @interface
(trait_declaration name: (name) @name) @trait
(function_definition name: (name) @name) @function
(method_declaration name: (name) @name) @method
(function_call_expression function: (name) @reference)
(member_call_expression name: (name) @reference)
(scoped_call_expression name: (name) @reference)`,
  'c-sharp': `
(class_declaration name: (identifier) @name) @class
(interface_declaration name: (identifier) @name) @interface
(struct_declaration name: (identifier) @name) @struct
(enum_declaration name: (identifier) @name) @enum
(method_declaration name: (identifier) @name) @method
(invocation_expression function: [(identifier) @reference (member_access_expression name: (identifier) @reference)])`,
  bash: `
(function_definition name: (word) @name) @function
(command name: (command_name (word) @reference))`,
} as const;

/** Returns the tree-sitter query that finds definitions and references. */
export function queryOf(grammar: Grammar): string {
  return QUERIES[grammar];
}
