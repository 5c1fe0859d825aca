import { escapeHtml, type Heading } from './markdown.ts';
import type { Group } from './navigation.ts';

/** The parts of a page besides its content. Addresses are relative to the page, so that the site works below any path and as files. */
export type Frame = {
  readonly title: string;
  /** Path from the page to the folder of its version, such as `../../`. */
  readonly toVersion: string;
  /** Path of the page in the folder of its version, such as `docs/tasks.html`. */
  readonly page: string;
  readonly version: string;
  readonly groups: readonly Group[];
  readonly headings: readonly Heading[];
  /** File name of the page in Markdown. */
  readonly twin: string;
  /** Names of the scripts of the page. The script of all pages is not among them. */
  readonly scripts: readonly string[];
};

/** Returns a page as HTML. `content` is HTML. */
export function layout(content: string, frame: Frame): string {
  const { title, toVersion, page, version, scripts, twin } = frame;
  const all = ['../versions.js', 'assets/site.js', ...scripts];
  return `<!doctype html>
<html lang="en" data-version="${escapeHtml(version)}" data-to-version="${toVersion}" data-page="${escapeHtml(page)}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)} – floe</title>
<link rel="alternate" type="text/markdown" href="${escapeHtml(twin)}">
<link rel="stylesheet" href="${toVersion}assets/style.css">
<script src="${toVersion}assets/theme.js"></script>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header>
<a class="brand" href="${toVersion}docs/README.html">floe</a>
<div class="search"><input id="search" type="search" placeholder="Search  /" aria-label="Search the documentation" autocomplete="off" aria-controls="results"><ol id="results" hidden></ol></div>
<label class="version">Version <select id="version"><option>${escapeHtml(version)}</option></select></label>
<button id="theme" type="button" aria-label="Change between light and dark">◐</button>
</header>
<div class="columns">
<details class="menu" open><summary>Pages</summary>
<nav aria-label="Pages">
${frame.groups.map((group) => groupHtml(group, frame)).join('\n')}
</nav></details>
<main id="content">
${content}
<footer>floe ${escapeHtml(version)} · <a href="${escapeHtml(twin)}">this page as Markdown</a> · <a href="${toVersion}llms.txt">llms.txt</a></footer>
</main>
${outline(frame.headings)}
</div>
${all.map((script) => `<script src="${toVersion}${script}" defer></script>`).join('\n')}
</body>
</html>
`;
}

/** Returns the path of the HTML page of a Markdown file. */
export function htmlPath(path: string): string {
  return path.replace(/\.md$/, '.html');
}

function groupHtml({ title, entries }: Group, { page, toVersion }: Frame): string {
  const items = entries.map((entry) => {
    const address = htmlPath(entry.path);
    const current = address === page ? ' aria-current="page"' : '';
    return `<li><a href="${toVersion}${address}"${current}>${escapeHtml(capitalized(entry.title))}</a></li>`;
  });
  return `<h2>${escapeHtml(title)}</h2>\n<ul>${items.join('\n')}</ul>`;
}

function outline(headings: readonly Heading[]): string {
  const shown = headings.filter(({ depth }) => depth === 2 || depth === 3);
  if (shown.length < 2) return '';
  const items = shown.map(
    ({ depth, id, text }) => `<li class="depth-${depth}"><a href="#${id}">${escapeHtml(text)}</a></li>`,
  );
  return `<nav class="outline" aria-label="On this page"><h2>On this page</h2><ul>${items.join('\n')}</ul></nav>`;
}

function capitalized(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
