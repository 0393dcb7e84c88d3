/* html.c - the picture in a page of its own, with zoom and details under the pointer. */
#include <string.h>

#include "layout.h"
#include "text.h"

static const char page_style[] =
    ":root{color-scheme:light dark;--bg:#fff;--text:#1c2430;--mute:#5d6878;--card:#f4f6f8;"
    "--line:#dde2e8}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#12161b;--text:#e8ecf1;--mute:#98a4b3;"
    "--card:#1b2128;--line:#2d353f}}\n"
    "body{margin:0;background:var(--bg);color:var(--text);font:15px/1.5 system-ui,'Segoe UI',"
    "Helvetica,Arial,'DejaVu Sans',sans-serif}\n"
    "main{max-width:1240px;margin:0 auto;padding:28px 20px 48px}\n"
    "h1{font-size:24px;font-weight:650;letter-spacing:-.01em;margin:0 0 4px}\n"
    "p{margin:0 0 4px;color:var(--mute)}.bar+p{margin:10px 0 "
    "0;font-size:13px}.scroll+p{font-size:13px}\n"
    ".cards{display:flex;flex-wrap:wrap;gap:10px;margin:18px 0 0;padding:0}\n"
    ".cards div{flex:1 1 150px;background:var(--card);border-radius:8px;padding:10px 14px}\n"
    ".cards dt{font-size:12.5px;color:var(--mute)}.cards dd{margin:0;font-size:20px;"
    "font-weight:600;font-variant-numeric:tabular-nums}\n"
    ".bar{display:flex;flex-wrap:wrap;align-items:center;gap:6px 18px;margin:18px 0 0;padding:8px "
    "0;"
    "position:sticky;top:0;background:var(--bg);border-bottom:1px solid var(--line);"
    "font-size:13px;color:var(--mute)}\n"
    ".bar "
    "svg{width:16px;height:11px;margin-right:6px}.tools{margin-left:auto;display:flex;gap:6px}\n"
    "button{font:inherit;color:var(--text);background:var(--card);border:1px solid var(--line);"
    "border-radius:6px;padding:2px 11px;cursor:pointer}button:hover{border-color:var(--mute)}\n"
    "#timeline{display:block;width:100%;height:auto;touch-action:pan-y;cursor:grab;outline:none;"
    "-webkit-user-select:none;user-select:none}#timeline:active{cursor:grabbing}\n"
    "#timeline .zoom rect[class]:hover{opacity:.8}#timeline "
    "text{font-variant-numeric:tabular-nums}\n"
    "#cursor line{stroke:var(--mute)}#cursor text{fill:var(--text);font-size:11px}"
    "#cursor{pointer-events:none}\n"
    "#tip{position:fixed;z-index:2;pointer-events:none;background:var(--text);color:var(--bg);"
    "border-radius:6px;padding:5px 10px;font-size:12.5px;max-width:420px;display:none;"
    "box-shadow:0 2px 10px #0004}\n"
    "@media (max-width:900px){.scroll{overflow-x:auto}#timeline{min-width:860px}}\n";

/* Bars are scaled as one group; labels, ticks and hatching keep their shape and are placed anew. */
static const char script[] =
    "const svg=document.getElementById('timeline'),all=(q)=>[...svg.querySelectorAll(q)],\n"
    "  make=(tag,attrs,to)=>{const e=document.createElementNS(svg.namespaceURI,tag);\n"
    "    for(const k in attrs)e.setAttribute(k,attrs[k]);to.append(e);return e},\n"
    "  zooms=all('.zoom'),axes=all('.axis'),hatch=svg.querySelector('#hatch'),\n"
    "  thin=all('rect[data-w]').map(e=>({e,w:+e.dataset.w})),\n"
    "  labels=all('.l').map(e=>({e,x:+e.dataset.x,w:+e.dataset.w,k:+e.dataset.k,\n"
    "    full:e.dataset.f,brief:e.dataset.b,shown:e.textContent})),\n"
    "  tips=new WeakMap(),tip=document.getElementById('tip'),\n"
    "  cursor=make('g',{id:'cursor',visibility:'hidden'},svg),\n"
    "  hair=make('line',{y1:LAYOUT.head,y2:LAYOUT.height-LAYOUT.axis+22},cursor),\n"
    "  clock=make('text',{y:LAYOUT.head-4,'text-anchor':'middle'},cursor);\n"
    "let scale=1,at=0,grip=null;\n"
    "const place=(x)=>(x-at)*scale,fits=(text,room,k)=>text&&text.length*k+4<=room;\n"
    "function tick(){const least=LAYOUT.ms/scale/10,power=10**Math.floor(Math.log10(least));\n"
    "  return power*[1,2,5,10].find(m=>m*power>=least*0.999)}\n"
    "function draw(){\n"
    "  scale=Math.min(Math.max(scale,1),200);\n"
    "  at=Math.min(Math.max(at,0),LAYOUT.plot-LAYOUT.plot/scale);\n"
    "  for(const z of zooms)z.setAttribute('transform',`scale(${scale} 1) translate(${-at} 0)`);\n"
    "  hatch.setAttribute('patternTransform',`scale(${1/scale} 1) rotate(45)`);\n"
    "  for(const {e,w} of thin)e.setAttribute('width',Math.max(w,.5/scale));\n"
    "  for(const l of labels){\n"
    "    const left=Math.max(place(l.x),0),right=Math.min(place(l.x+l.w),LAYOUT.plot),\n"
    "      room=right-left,\n"
    "      text=fits(l.full,room,l.k)?l.full:fits(l.brief,room,l.k)?l.brief:'';\n"
    "    if(text!==l.shown)l.e.textContent=l.shown=text;\n"
    "    if(text)l.e.setAttribute('x',(left+right)/2)}\n"
    "  const step=tick(),digits=Math.max(0,-Math.floor(Math.log10(step)+1e-9));\n"
    "  for(const axis of axes){axis.replaceChildren();\n"
    "    const top=+axis.dataset.top,low=+axis.dataset.low;\n"
    "    for(let i=Math.ceil(at/LAYOUT.plot*LAYOUT.ms/step-1e-9);;i++){\n"
    "      const x=place(i*step/LAYOUT.ms*LAYOUT.plot);if(x>LAYOUT.plot+.01)break;\n"
    "      make('line',{class:'grid',x1:LAYOUT.left+x,x2:LAYOUT.left+x,y1:top,y2:low+4},axis);\n"
    "      make('text',{class:'mute',x:LAYOUT.left+x,y:low+17,'font-size':11,\n"
    "        'text-anchor':'middle'},axis).textContent=(i*step).toFixed(digits)+(i?'':' ms')}}}\n"
    "function zoom(factor,x){const here=at+x/scale;scale=Math.min(Math.max(scale*factor,1),200);\n"
    "  at=here-x/scale;draw()}\n"
    "const pixel=()=>LAYOUT.width/svg.getBoundingClientRect().width,\n"
    "  plotX=(e)=>(e.clientX-svg.getBoundingClientRect().left)*pixel()-LAYOUT.left;\n"
    "function text_of(e){const title=e.querySelector&&e.querySelector('title');\n"
    "  if(title){tips.set(e,title.textContent);title.remove()}return tips.get(e)}\n"
    "svg.addEventListener('pointermove',(e)=>{\n"
    "  const x=plotX(e),inside=x>=0&&x<=LAYOUT.plot,text=grip===null&&text_of(e.target);\n"
    "  cursor.setAttribute('visibility',inside?'visible':'hidden');\n"
    "  hair.setAttribute('x1',LAYOUT.left+x);hair.setAttribute('x2',LAYOUT.left+x);\n"
    "  clock.setAttribute('x',LAYOUT.left+x);\n"
    "  clock.textContent=((at+x/scale)/LAYOUT.plot*LAYOUT.ms).toPrecision(4)+' ms';\n"
    "  if(grip!==null){at-=(e.clientX-grip)*pixel()/scale;grip=e.clientX;draw()}\n"
    "  tip.style.display=text?'block':'none';\n"
    "  if(text){tip.textContent=text;const box=tip.getBoundingClientRect();\n"
    "    tip.style.left=Math.min(e.clientX+14,innerWidth-box.width-8)+'px';\n"
    "    tip.style.top=(e.clientY+box.height+26>innerHeight?e.clientY-box.height-12\n"
    "      :e.clientY+16)+'px'}});\n"
    "svg.addEventListener('pointerleave',()=>{tip.style.display='none';\n"
    "  cursor.setAttribute('visibility','hidden')});\n"
    "svg.addEventListener('pointerdown',(e)=>{if(e.button===0){grip=e.clientX;\n"
    "  svg.setPointerCapture(e.pointerId)}});\n"
    "for(const end of ['pointerup','pointercancel'])svg.addEventListener(end,()=>{grip=null});\n"
    "svg.addEventListener('wheel',(e)=>{if(e.ctrlKey||e.metaKey){e.preventDefault();\n"
    "  zoom(Math.exp(-e.deltaY/200),plotX(e))}},{passive:false});\n"
    "svg.addEventListener('dblclick',(e)=>zoom(2,plotX(e)));\n"
    "const keys={'+':()=>zoom(1.5,LAYOUT.plot/2),'=':()=>zoom(1.5,LAYOUT.plot/2),\n"
    "  '-':()=>zoom(1/1.5,LAYOUT.plot/2),'0':()=>{scale=1;at=0;draw()},\n"
    "  ArrowLeft:()=>{at-=LAYOUT.plot/scale/8;draw()},\n"
    "  ArrowRight:()=>{at+=LAYOUT.plot/scale/8;draw()}};\n"
    "addEventListener('keydown',(e)=>{if(keys[e.key]&&!e.ctrlKey&&!e.metaKey&&!e.altKey){\n"
    "  e.preventDefault();keys[e.key]()}});\n"
    "for(const b of document.querySelectorAll('button'))\n"
    "  b.addEventListener('click',()=>keys[b.dataset.key]());\n"
    "draw();\n";

static const char page_hint[] = "Point at a bar for its details; drag to move; zoom with the "
                                "buttons, the keys + and -, a double "
                                "click, or the wheel with Ctrl held; 0 shows the whole run.";

static void write_element(FILE *file, const char *element, const char *text, size_t length)
{
    fprintf(file, "<%s>", element);
    text_markup(file, text, length);
    fprintf(file, "</%s>", element);
}

static void write_lines(const timeline *t, FILE *file)
{
    int length, figures = 0;
    const char *value;
    for (int i = 0; i < t->line_count; i++)
        if (!timeline_figure(t->lines[i], &length, &value))
            write_element(file, "p", t->lines[i], strlen(t->lines[i]));
        else
            figures++;
    if (!figures)
        return;
    fputs("\n<dl class=\"cards\">", file);
    for (int i = 0; i < t->line_count; i++)
        if (timeline_figure(t->lines[i], &length, &value)) {
            fputs("<div>", file);
            write_element(file, "dt", t->lines[i], (size_t)length);
            write_element(file, "dd", value, strlen(value));
            fputs("</div>", file);
        }
    fputs("</dl>\n", file);
}

static void write_bar(const layout *l, FILE *file)
{
    svg_kind kinds[SVG_KINDS];
    int count = svg_legend(l, kinds);
    fputs("<div class=\"bar\">", file);
    for (int i = 0; i < count; i++) {
        fprintf(file,
                "<span><svg viewBox=\"0 0 16 11\" aria-hidden=\"true\"><rect class=\"%s\" "
                "width=\"16\" height=\"11\"/></svg>",
                kinds[i].class);
        text_markup(file, kinds[i].text, strlen(kinds[i].text));
        fputs("</span>", file);
    }
    fputs("<span class=\"tools\"><button data-key=\"-\" title=\"zoom out (-)\">&minus;</button>"
          "<button data-key=\"+\" title=\"zoom in (+)\">+</button>"
          "<button data-key=\"0\" title=\"whole run (0)\">Reset</button></span></div>\n",
          file);
}

bool timeline_html(const timeline *t, FILE *file)
{
    layout *l = layout_create(t, true);
    if (!l)
        return false;
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
          file);
    write_element(file, "title", t->title, strlen(t->title));
    fprintf(file, "\n<style>\n%s", page_style);
    svg_style(file);
    fputs("</style>\n</head>\n<body>\n<main>\n", file);
    write_element(file, "h1", t->title, strlen(t->title));
    fputc('\n', file);
    write_lines(t, file);
    write_bar(l, file);
    write_element(file, "p", timeline_reading, strlen(timeline_reading));
    fprintf(file,
            "<div class=\"scroll\"><svg id=\"timeline\" viewBox=\"0 0 %d %.0f\" role=\"img\" "
            "aria-label=\"timeline of all ranks\">\n",
            LAYOUT_WIDTH, l->height);
    svg_panels(l, file, SVG_INLINE);
    fputs("</svg></div>\n", file);
    write_element(file, "p", page_hint, strlen(page_hint));
    fprintf(file,
            "\n</main>\n<div id=\"tip\"></div>\n<script>\n'use strict';\n"
            "const LAYOUT={width:%d,left:%d,plot:%d,head:%d,axis:%d,height:%.1f,ms:%.9g};\n",
            LAYOUT_WIDTH, LAYOUT_LEFT, LAYOUT_PLOT, LAYOUT_HEAD, LAYOUT_AXIS, l->height,
            l->duration_ns / 1e6);
    fprintf(file, "%s</script>\n</body>\n</html>\n", script);
    layout_destroy(l);
    return true;
}
