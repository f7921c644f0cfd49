import { defineConfig } from "vite";

// Fixed names and one file of each kind: the server serves them, and a report puts them into one HTML file.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    assetsInlineLimit: 100_000,
    rollupOptions: {
      output: { entryFileNames: "app.js", assetFileNames: "app[extname]", codeSplitting: false },
    },
  },
});
