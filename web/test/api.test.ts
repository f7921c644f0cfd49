import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { ApiSource } from "../src/data/api.ts";
import { SourceError } from "../src/data/source.ts";

test("an answer that is cut off is an error of the connection, not an empty answer", async () => {
  const server = createServer((_, response) => {
    response.writeHead(200, { "content-type": "application/json", "content-length": "1000" });
    response.write('{"events": [', () => response.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const base = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
  const plain = globalThis.fetch;
  globalThis.fetch = (path, init) => plain(new URL(String(path), base), init); // a page's addresses are relative to it
  try {
    await assert.rejects(new ApiSource().events("run"), (error) => error instanceof SourceError && error.status === 0);
  } finally {
    globalThis.fetch = plain;
    server.close();
  }
});
