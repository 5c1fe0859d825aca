type Pattern = { readonly matcher: RegExp; readonly includes: boolean };

/**
 * Returns whether the patterns of a `.dockerignore` file exclude a path of the build context. A pattern also matches everything below a folder
 * that it names, and the last pattern that matches decides.
 */
export function ignoredBy(text: string): (path: string) => boolean {
  const patterns = text.split(/\r?\n/).flatMap(patternOf);
  return (path) =>
    patterns.reduce((ignored, { matcher, includes }) => (matcher.test(path) ? !includes : ignored), false);
}

function patternOf(line: string): Pattern[] {
  if (line.startsWith('#')) return [];
  const trimmed = line.trim();
  const includes = trimmed.startsWith('!');
  const glob = trimmed
    .slice(includes ? 1 : 0)
    .trim()
    .replace(/^(\.?\/)+/, '')
    .replace(/\/+$/, '');
  return glob === '' || glob === '.' ? [] : [{ includes, matcher: new RegExp(`^${expressionOf(glob)}(/.*)?$`, 's') }];
}

/** Converts a pattern to a regular expression: `**` matches any number of folders, `*` and `?` match within a name. */
function expressionOf(glob: string): string {
  return glob.replaceAll(/\*\*\/|\*\*|\*|\?|\[[^\]]+\]|\\?[\s\S]/g, (part) => {
    if (part === '**/') return '(.*/)?';
    if (part === '**') return '.*';
    if (part === '*') return '[^/]*';
    if (part === '?') return '[^/]';
    if (part.length > 2) return part;
    return (part.length === 2 ? part.slice(1) : part).replace(/[.*+?^${}()|[\]\\/]/, '\\$&');
  });
}
