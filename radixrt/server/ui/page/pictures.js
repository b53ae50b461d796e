// Pictures of the playground's next message: files that a user chooses, drops or pastes, as data: URLs.
import { $, make } from "./tools.js";

const TYPES = ["image/png", "image/jpeg", "image/webp"];
const MAX_BYTES = 10 * 2 ** 20;
const INVITATION = "PNG, JPEG or WEBP; you can drop or paste it here";

export class Pictures {
  constructor(tab, isWanted) { // isWanted: whether requests of the chosen mode take pictures
    this.chosen = []; // each a name and a data: URL
    this.most = 0; // of a request; 0 for a model that reads no images
    this.isWanted = isWanted;
    $("picture-file").addEventListener("change", () => {
      this.add([...$("picture-file").files]);
      $("picture-file").value = ""; // the same file can be chosen again
    });
    $("add-picture").addEventListener("click", () => $("picture-file").click());
    tab.addEventListener("dragover", (event) => {
      event.preventDefault();
      $("ask").classList.toggle("dropping", this.isWanted() && this.most > 0);
    });
    tab.addEventListener("dragleave", () => $("ask").classList.remove("dropping"));
    tab.addEventListener("drop", (event) => {
      $("ask").classList.remove("dropping");
      if (event.dataTransfer.files.length) event.preventDefault(); // the browser would leave the page
      this.add([...event.dataTransfer.files]);
    });
    tab.addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files].filter((file) => file.type.startsWith("image/"));
      if (files.length && this.isWanted()) event.preventDefault();
      this.add(files);
    });
    this.note();
  }

  start(most) {
    this.most = most;
    $("add-picture").disabled = $("detail").disabled = !most;
    this.note();
  }

  note(problem = "") {
    $("picture-note").textContent = problem || (this.most ? INVITATION : "this model reads no images");
    $("picture-note").classList.toggle("bad", problem !== "");
  }

  async add(files) {
    if (!files.length || !this.isWanted()) return;
    if (!this.most) return this.note("this model reads no images, so the picture was not added");
    const wrong = files.find((file) => !TYPES.includes(file.type)), large = files.find((file) => file.size > MAX_BYTES);
    if (wrong) return this.note(`${wrong.name} is no PNG, JPEG or WEBP file`);
    if (large) return this.note(`${large.name} has more than 10 MiB; make it smaller`);
    this.note();
    this.put(await Promise.all(files.map(async (file) => ({ name: file.name, url: await dataUrl(file) }))));
  }

  put(pictures) {
    this.chosen.push(...pictures);
    this.draw();
  }

  // The chosen pictures, which the form then has no more.
  take() {
    const taken = this.chosen;
    this.chosen = [];
    this.draw();
    return taken;
  }

  draw() {
    $("pictures").replaceChildren(...this.chosen.map((picture) => make("span", { class: "picture" }, thumbnail(picture), make("button", {
      type: "button", "aria-label": `Remove ${picture.name}`, title: "Remove", onclick: () => {
        this.chosen = this.chosen.filter((other) => other !== picture);
        this.draw();
      },
    }, "×"))));
  }
}

export const thumbnail = (picture) => make("img", { src: picture.url, alt: picture.name, title: picture.name });

// The content of a message: its pictures, then its text.
export function content(text, pictures) {
  if (!pictures.length) return text;
  const parts = pictures.map((picture) => ({ type: "image_url", image_url: { url: picture.url, detail: $("detail").value } }));
  return text.trim() ? [...parts, { type: "text", text }] : parts;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
