package specs

import (
	"fmt"
	"html"
	"regexp"
	"strings"
)

// page makes HTML of the Markdown that specifications are written in:
// headings, paragraphs, lists of one level, tables, fenced code; within them
// code, emphasis and links.
func page(markdown string) []byte {
	var b strings.Builder
	title := "Specification"
	if first, _, ok := strings.Cut(markdown, "\n"); ok && strings.HasPrefix(first, "# ") {
		title = strings.ReplaceAll(first[2:], "`", "")
	}
	fmt.Fprintf(&b, `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<style>%s</style>
</head>
<body>
`, html.EscapeString(title), style)
	r := &renderer{out: &b, lines: strings.Split(markdown, "\n")}
	for len(r.lines) > 0 {
		r.block()
	}
	b.WriteString("</body>\n</html>\n")
	return []byte(b.String())
}

const style = "body{max-width:46rem;margin:2rem auto;padding:0 1rem;font:1rem/1.5 sans-serif;color:#222;background:#fff}" +
	"code,pre{font:.9em/1.4 monospace;background:#f3f3f3}code{padding:0 .2em}pre{padding:.8em;overflow:auto}pre code{padding:0}" +
	"table{border-collapse:collapse}th,td{border:1px solid #ccc;padding:.3em .6em;text-align:left;vertical-align:top}"

type renderer struct {
	out   *strings.Builder
	lines []string
}

// take returns the lines from the start as long as they are wanted.
func (r *renderer) take(wanted func(string) bool) []string {
	n := 0
	for n < len(r.lines) && wanted(r.lines[n]) {
		n++
	}
	taken := r.lines[:n]
	r.lines = r.lines[n:]
	return taken
}

var (
	heading = regexp.MustCompile(`^(#{1,4}) (.+)$`)
	item    = regexp.MustCompile(`^(?:[-*]|(\d+)\.) +(.*)$`)
)

func (r *renderer) block() {
	line := r.lines[0]
	m := heading.FindStringSubmatch(line)
	switch {
	case strings.TrimSpace(line) == "":
		r.lines = r.lines[1:]
	case strings.HasPrefix(line, "```"):
		r.code()
	case m != nil:
		r.lines = r.lines[1:]
		fmt.Fprintf(r.out, "<h%d id=\"%s\">%s</h%[1]d>\n", len(m[1]), slug(m[2]), inline(m[2]))
	case strings.HasPrefix(line, "|"):
		r.table()
	case item.MatchString(line):
		r.list()
	default:
		text := r.take(func(l string) bool { return strings.TrimSpace(l) != "" && !starts(l) })
		fmt.Fprintf(r.out, "<p>%s</p>\n", inline(strings.Join(text, "\n")))
	}
}

// starts reports whether a line begins a block of its own.
func starts(line string) bool {
	return strings.HasPrefix(line, "```") || strings.HasPrefix(line, "|") || heading.MatchString(line) || item.MatchString(line)
}

func (r *renderer) code() {
	r.lines = r.lines[1:]
	text := r.take(func(l string) bool { return !strings.HasPrefix(l, "```") })
	r.lines = r.lines[min(1, len(r.lines)):]
	fmt.Fprintf(r.out, "<pre><code>%s\n</code></pre>\n", html.EscapeString(strings.Join(text, "\n")))
}

func (r *renderer) list() {
	kind := "ul"
	if item.FindStringSubmatch(r.lines[0])[1] != "" {
		kind = "ol"
	}
	fmt.Fprintf(r.out, "<%s>\n", kind)
	for len(r.lines) > 0 {
		m := item.FindStringSubmatch(r.lines[0])
		if m == nil {
			break
		}
		r.lines = r.lines[1:]
		more := r.take(func(l string) bool { return strings.HasPrefix(l, "  ") }) // an item goes on indented
		for i := range more {
			more[i] = strings.TrimSpace(more[i])
		}
		fmt.Fprintf(r.out, "<li>%s</li>\n", inline(strings.Join(append([]string{m[2]}, more...), "\n")))
	}
	fmt.Fprintf(r.out, "</%s>\n", kind)
}

func (r *renderer) table() {
	rows := r.take(func(l string) bool { return strings.HasPrefix(l, "|") })
	r.out.WriteString("<table>\n")
	for i, row := range rows {
		if i == 1 {
			continue // the line below the titles
		}
		cell := "td"
		if i == 0 {
			cell = "th"
		}
		r.out.WriteString("<tr>")
		for text := range strings.SplitSeq(strings.Trim(strings.TrimSpace(row), "|"), "|") {
			fmt.Fprintf(r.out, "<%s>%s</%[1]s>", cell, inline(strings.TrimSpace(text)))
		}
		r.out.WriteString("</tr>\n")
	}
	r.out.WriteString("</table>\n")
}

// spans are code, emphasis and links. What is in code is nothing else.
var spans = regexp.MustCompile("`([^`]+)`|\\*\\*([^*]+)\\*\\*|\\[([^\\]]+)\\]\\(([^)\\s]+)\\)")

func inline(text string) string {
	var b strings.Builder
	for {
		m := spans.FindStringSubmatchIndex(text)
		if m == nil {
			b.WriteString(html.EscapeString(text))
			return b.String()
		}
		group := func(i int) string { return text[m[2*i]:m[2*i+1]] }
		b.WriteString(html.EscapeString(text[:m[0]]))
		switch {
		case m[2] >= 0:
			fmt.Fprintf(&b, "<code>%s</code>", html.EscapeString(group(1)))
		case m[4] >= 0:
			fmt.Fprintf(&b, "<strong>%s</strong>", inline(group(2)))
		default:
			fmt.Fprintf(&b, `<a href="%s">%s</a>`, html.EscapeString(group(4)), inline(group(3)))
		}
		text = text[m[1]:]
	}
}

// slug names a heading, as other readers of Markdown do.
func slug(text string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-':
			return c
		case c == ' ':
			return '-'
		}
		return -1
	}, strings.ToLower(text))
}
