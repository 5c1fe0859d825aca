import type { CompletionRecord, SessionView, Trajectory } from '@floe-rl/core/schema';

/** The parts of a session, in the form of the server's API. */
export type SessionParts = {
  readonly view: SessionView;
  readonly records: readonly CompletionRecord[];
  /** `null` for a session that has none. */
  readonly trajectory: Trajectory | null;
};

/** Id of the element of a saved page that contains its session. */
const ELEMENT = 'floe-session';

/** The session of a page that was saved as one file; `null` on a page of a server. */
export const savedSession: SessionParts | null = read();

function read(): SessionParts | null {
  const text = document.getElementById(ELEMENT)?.textContent;
  return text == null ? null : (JSON.parse(text) as SessionParts);
}

/** Returns this page with one session as a single file that needs no server and loads nothing. */
export async function savedPage(parts: SessionParts): Promise<string> {
  const script = document.querySelector<HTMLScriptElement>('script[type="module"][src]');
  const style = document.querySelector<HTMLLinkElement>('link[rel="stylesheet"]');
  const [program, css] = await Promise.all([textAt(script?.src), textAt(style?.href)]);
  // Text of an agent cannot contain this number. A script or style in such a text would not run, even if a view failed to escape it.
  const nonce = crypto.getRandomValues(new Uint32Array(4)).join('');
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="default-src 'none'; script-src 'nonce-${nonce}'; style-src 'nonce-${nonce}'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>floe: ${parts.view.session_id}</title>
<style nonce="${nonce}">${css}</style>
</head>
<body>
<div id="page"></div>
<script type="application/json" id="${ELEMENT}">${withoutTags(JSON.stringify(parts))}</script>
<script type="module" nonce="${nonce}">${program.replaceAll('</script', '<\\/script')}</script>
</body>
</html>
`;
}

/** Returns JSON in which no text can end the element that contains it. */
function withoutTags(json: string): string {
  return json.replaceAll('<', '\\u003c');
}

async function textAt(url: string | undefined): Promise<string> {
  if (url === undefined) throw new Error('the page has no script or style to save');
  return (await fetch(url)).text();
}
