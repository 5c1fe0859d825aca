import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PRIVATE_FILE_MODE } from '@floe-rl/core';
import { printNote } from './print.ts';

/** The program that opens an address in the browser of the user, by platform. */
const OPENERS: Readonly<Partial<Record<NodeJS.Platform, string>>> = { darwin: 'open', linux: 'xdg-open' };

/**
 * Returns the address of a server's dashboard. With a token, the page is signed in when it opens: the token is in the fragment, which browsers
 * do not send, and the page removes it from the address. `place` is the view that the page then shows, such as `sessions`; by default the
 * overview.
 */
export function dashboardLink(serverUrl: string, token: string | null = null, place = ''): string {
  const fragment = token === null ? `/${place}` : `/sign-in/${encodeURIComponent(token)}${place && `/${place}`}`;
  return `${serverUrl}/dashboard/${fragment === '/' ? '' : `#${fragment}`}`;
}

/**
 * Opens an address in the browser. Prints a note when there is no browser. The browser gets a file that redirects to the address, because the
 * address may contain a token. Other users of the machine can read the arguments of programs, but they cannot read this user's files.
 */
export function openBrowser(link: string): void {
  const opener = OPENERS[process.platform];
  const fail = (why: string): void => printNote(`The browser was not opened (${why}); open the address yourself.`);
  if (opener === undefined) {
    fail(`not known how on ${process.platform}`);
    return;
  }
  const dir = mkdtempSync(join(tmpdir(), 'floe-open-'));
  process.once('exit', () => rmSync(dir, { recursive: true, force: true }));
  const file = join(dir, 'dashboard.html');
  const page = `<!doctype html><title>floe</title><script>location.replace(${JSON.stringify(link)})</script>\n`;
  writeFileSync(file, page, { mode: PRIVATE_FILE_MODE });
  const child = spawn(opener, [file], { stdio: 'ignore', detached: true });
  child.once('error', (error) => fail(error.message));
  child.once('exit', (code) => {
    if (code !== 0) fail(`${opener} ended with ${code}`);
  });
  child.unref();
}
