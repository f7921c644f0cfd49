import { fileName } from "../logic/csv.ts";
import { download } from "./download.ts";

const HEAD = 34;

/** What is saved as PNG: a title above, `draw` below it in CSS pixels, and a legend of coloured marks at the foot. */
export interface Picture {
  /** Of the file; the text above may say more. */
  name: string;
  title: string;
  width: number;
  height: number;
  foot: number;
  ratio?: number;
  legend?: { text: string; stroke: string; dash?: number[] }[];
  markHeight?: number;
  draw: (context: CanvasRenderingContext2D) => void;
}

export function savePicture(picture: Picture): void {
  const { width, height, foot, ratio = 2, legend = [], markHeight = 3 } = picture;
  const style = getComputedStyle(document.documentElement);
  const font = getComputedStyle(document.body).fontFamily;
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round((HEAD + height + foot) * ratio);
  const context = canvas.getContext("2d")!;
  context.scale(ratio, ratio);
  context.fillStyle = style.getPropertyValue("--panel");
  context.fillRect(0, 0, width, HEAD + height + foot);
  context.fillStyle = style.getPropertyValue("--text");
  context.font = `600 14px ${font}`;
  context.fillText(picture.title, 12, 22);
  context.font = `11px ${font}`;
  let left = 12;
  const middle = HEAD + height + foot - 14;
  for (const { text, stroke, dash = [] } of legend) {
    context.strokeStyle = stroke;
    context.lineWidth = markHeight;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(left, middle);
    context.lineTo(left + 14, middle);
    context.stroke();
    context.fillStyle = style.getPropertyValue("--text-dim");
    context.fillText(text, left + 18, middle + 4);
    left += context.measureText(text).width + 32;
  }
  context.setLineDash([]);
  context.translate(0, HEAD);
  picture.draw(context);
  canvas.toBlob((blob) => blob && download(fileName(picture.name, "png"), "image/png", blob), "image/png");
}
