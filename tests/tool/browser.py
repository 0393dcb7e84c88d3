"""Pictures in a real browser: no text over another, none outside of its picture, none wider than
the bar that it names.  script/test --browser runs this; it needs Chromium and the tool."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

TOOL = os.environ["IMBREX_TOOL"]
SOURCE = os.environ["IMBREX_SOURCE_DIR"]
WIDTHS = 1280, 800

# Boxes are those of lines, which are higher than letters: neighbours may share two pixels.
CHECK = """
<script>
addEventListener('load', () => {
  const faults = [], edge = 1, shared = 2;
  const name = (e) => (e.textContent || e.tagName).trim().slice(0, 60);
  const boxes = [];
  const add = (e, frame) => {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height || !e.textContent.trim()) return;
    boxes.push({e, box});
    if (frame && (box.left < frame.left - edge || box.right > frame.right + edge ||
                  box.top < frame.top - edge || box.bottom > frame.bottom + edge))
      faults.push(`"${name(e)}" is outside of the picture`);
  };
  const pictures = [...document.querySelectorAll('svg[viewBox]')]
    .filter((svg) => svg.viewBox.baseVal.width > 100);
  if (!pictures.length) faults.push('there is no picture');
  for (const svg of pictures) {
    const frame = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll('text')) add(text, frame);
    for (const bar of svg.querySelectorAll('rect:not([width="100%"])')) {
      if (bar.closest('defs,clipPath')) continue;
      const box = bar.getBoundingClientRect();
      if (box.left < frame.left - edge || box.right > frame.right + edge ||
          box.top < frame.top - edge || box.bottom > frame.bottom + edge)
        faults.push(`a ${bar.getAttribute('class')} bar is outside of the picture`);
    }
    const pixel = frame.width / svg.viewBox.baseVal.width;
    for (const label of svg.querySelectorAll('.l[data-w]')) {
      const box = label.getBoundingClientRect();
      if (label.textContent && box.width > label.dataset.w * pixel + edge)
        faults.push(`"${name(label)}" is ${box.width.toFixed(0)} wide, its bar ` +
                    `${(label.dataset.w * pixel).toFixed(0)}`);
    }
  }
  for (const e of document.querySelectorAll('h1,p,dt,dd,.bar>span:not(.tools),button')) add(e);
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b) => {
    const wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
    const high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
    if (wide > shared && high > shared)
      faults.push(`"${name(a.e)}" and "${name(b.e)}" overlap by ${wide.toFixed(0)} x ` +
                  `${high.toFixed(0)}`);
  }));
  const scrolls = document.querySelector('.scroll');
  if (scrolls && document.documentElement.scrollWidth > innerWidth + edge)
    faults.push(`the page is wider than the window, by ` +
                `${document.documentElement.scrollWidth - innerWidth}`);
  const pre = document.createElement('pre');
  pre.id = 'faults';
  pre.textContent = JSON.stringify({texts: boxes.length, faults});
  document.body.append(pre);
});
</script>
"""

COMMANDS = {
    "mlp": ["mlp", "--ranks", "4", "--shape", "1024,3584", "--tokens", "512"],
    "mlp of experts": ["mlp", "--ranks", "4", "--shape", "512,512", "--tokens", "256",
                       "--experts", "8"],
    "mlp of 8 ranks": ["mlp", "--ranks", "8", "--shape", "256,512", "--tokens", "64"],
    "decode by tokens": ["decode", "--ranks", "4", "--shape", "1024,16,4,64",
                         "--sequences", "8,512"],
    "decode by heads": ["decode", "--ranks", "4", "--shape", "1024,16,4,64", "--sequences", "8,512",
                        "--shard", "heads"],
    "bench": ["bench", "ag_gemm", "--ranks", "4", "--m", "512", "--n", "512", "--k", "512"],
    "bench of threads": ["bench", "gemm_rs", "--ranks", "2", "--m", "512", "--n", "512", "--k",
                         "512", "--sms", "3", "--algorithm", "copy,chosen"],
    "mlp, emulated wire": ["mlp", "--ranks", "4", "--shape", "1024,3584", "--tokens", "512"],
    "experts, emulated wire": ["mlp", "--ranks", "4", "--shape", "512,512", "--tokens", "256",
                               "--experts", "8"],
    "bench without a product": ["bench", "all_reduce", "--ranks", "3", "--m", "512", "--n", "512"],
}


# What the script must see: texts that overlap, one outside, one wider than its bar, a bar outside.
PLANTED = """<!DOCTYPE html><html><body style='margin:0'>
<svg width="600" viewBox="0 0 600 100"><text x="10" y="40">one text</text>
<text x="20" y="44">another text</text><text x="590" y="90">beyond</text>
<text class="l" data-w="9" x="200" y="90">its bar is narrow</text>
<rect class="t0" x="580" y="10" width="40" height="9"/></svg></body></html>"""
PLANTED_FAULTS = ("overlap by", '"beyond" is outside', "its bar 9", "a t0 bar is outside")


def browser():
    names = "chromium", "chromium-browser", "google-chrome"
    found = [path for path in map(shutil.which, names) if path]
    if not found:
        sys.exit("browser.py: no Chromium in PATH: script/setup browser installs it")
    return found[0]


def look_at(chromium, path, folder, width):
    """What the page's script finds."""
    with open(path) as file:
        page = file.read()
    if path.endswith(".svg"):
        page = "<!DOCTYPE html><html><body style='margin:0'>%s</body></html>" % page
    page = page.replace("</body>", CHECK + "</body>")
    checked = os.path.join(folder, "checked.html")
    with open(checked, "w") as file:
        file.write(page)
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--user-data-dir=" + os.path.join(folder, "profile"), f"--window-size={width},1600",
         "--virtual-time-budget=5000", "--dump-dom", "file://" + checked],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120)
    found = re.search(r'<pre id="faults">(.*?)</pre>', done.stdout, re.DOTALL)
    if not found:
        return {"texts": 0, "faults": ["the browser did not show the page"]}
    text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(text)


def main():
    chromium, failed, checked = browser(), 0, 0
    drawn = {os.path.relpath(path, SOURCE): path for path in sorted(
        glob.glob(os.path.join(SOURCE, "docs", "**", "*.svg"), recursive=True) +
        glob.glob(os.path.join(SOURCE, "build", "demo.html")))}  # where script/demo has run
    with tempfile.TemporaryDirectory() as folder:
        planted = os.path.join(folder, "planted.html")
        with open(planted, "w") as file:
            file.write(PLANTED)
        seen = look_at(chromium, planted, folder, WIDTHS[0])["faults"]
        if len(seen) != len(PLANTED_FAULTS) or \
                not all(any(says in fault for fault in seen) for says in PLANTED_FAULTS):
            sys.exit("browser.py: of planted faults the browser sees %s" % seen)
        for name, words in COMMANDS.items():
            for kind in "html", "svg":
                path = os.path.join(folder, f"{len(drawn)}.{kind}")
                wire = {"IMBREX_CPU_LINK": "0.3"} if "wire" in name else {}
                subprocess.run([TOOL, *words, "--device", "cpu", "--rounds", "1", "--timeline",
                                path], check=True, stdout=subprocess.DEVNULL, timeout=120,
                               env={**os.environ, **wire})
                drawn[f"{name}, {kind}"] = path
        for name, path in drawn.items():
            for width in WIDTHS if path.endswith(".html") else WIDTHS[:1]:
                result = look_at(chromium, path, folder, width)
                checked += 1
                failed += bool(result["faults"])
                print("%-7s %s at %d: %d texts" % ("FAILED" if result["faults"] else "ok", name,
                                                  width, result["texts"]))
                for fault in result["faults"][:10]:
                    print("        " + fault)
    print(f"{checked} pictures in {os.path.basename(chromium)}, {failed} with faults")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
