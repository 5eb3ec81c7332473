package management

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	managementv1 "agentic-sandbox.aiwg.io/sandbox/api/management/v1"
	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

// PutFiles hands the body to the guest while it arrives.
func (a *api) PutFiles(w http.ResponseWriter, r *http.Request, ref string, params managementv1.PutFilesParams) {
	if err := wantMedia(r, mediaTar); err != nil {
		a.fail(w, r, err)
		return
	}
	if !path.IsAbs(params.Path) || strings.ContainsRune(params.Path, 0) || len(params.Path) > 4096 {
		a.fail(w, r, invalid{{Field: "path", Code: "parameter.form",
			Message: "want an absolute path inside the machine"}}.or(codeInvalidParameter))
		return
	}
	view, err := a.find(r, ref)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	body := &archive{
		from:  http.MaxBytesReader(w, r.Body, a.MaxArchive),
		rc:    http.NewResponseController(w),
		stall: a.Stall,
	}
	// The whole answer comes after the last byte of the body, however long
	// that takes; archive bounds each step.
	_ = body.rc.SetWriteDeadline(time.Time{})
	entries, size, err := a.Guests.PutArchive(r.Context(), view.ID.String(), params.Path, body)
	if err != nil {
		if body.err != nil {
			// The archive is broken because its source is.
			err = body.err
		}
		a.fail(w, r, err)
		return
	}
	a.answer(w, r, http.StatusOK, managementv1.FilesWritten{Entries: entries, Bytes: size})
}

// archive is the body of an upload. Every read has a deadline of its own, and
// what went wrong with the body is kept apart from what the guest said.
type archive struct {
	from  io.Reader
	rc    *http.ResponseController
	stall time.Duration
	err   error // of the body
}

func (a *archive) Read(b []byte) (int, error) {
	_ = a.rc.SetReadDeadline(time.Now().Add(a.stall)) // a test's writer has none
	n, err := a.from.Read(b)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		a.err = callerFault(codeTooLarge, "send it in several parts", "the archive is longer than %d bytes", tooLarge.Limit)
	} else {
		a.err = callerFault(codeIncomplete, "send it again", "the archive ended too early: %v", err)
	}
	return n, a.err
}

// GetInstanceLogs shows the console and the hypervisor's words.
func (a *api) GetInstanceLogs(w http.ResponseWriter, r *http.Request, ref string) {
	view, err := a.find(r, ref)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	log, err := a.Guests.Log(r.Context(), view.ID.String())
	if err != nil {
		a.fail(w, r, err)
		return
	}
	w.Header().Set("Vary", "Accept")
	if prefersText(r.Header.Values("Accept")) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		if _, err := io.WriteString(w, logText(log)); err != nil {
			a.Log.DebugContext(r.Context(), "cannot write answer", "error", err)
		}
		return
	}
	a.answer(w, r, http.StatusOK, managementv1.InstanceLog{
		State: log.State, Console: log.Console, Hypervisor: log.Hypervisor, Facts: table(log.Facts),
	})
}

// logText is the log as a person reads it, the newest and most telling last.
func logText(log fleet.Log) string {
	var b strings.Builder
	fmt.Fprintf(&b, "state: %s\n", log.State)
	keys := make([]string, 0, len(log.Facts))
	for k := range log.Facts {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, "%s: %s\n", k, log.Facts[k])
	}
	section := func(title, text string) {
		fmt.Fprintf(&b, "\n--- %s ---\n", title)
		b.WriteString(text)
		if !strings.HasSuffix(text, "\n") {
			b.WriteByte('\n')
		}
	}
	section("hypervisor", log.Hypervisor)
	section("console", log.Console)
	return b.String()
}

// prefersText weighs text/plain against application/json as Accept does
// (RFC 9110, 12.5.1). JSON wins a tie.
func prefersText(accept []string) bool {
	text, json := 0.0, 0.0
	if len(accept) == 0 {
		return false
	}
	for one := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		media, params, err := mime.ParseMediaType(one)
		if err != nil {
			continue
		}
		q := 1.0
		if s, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(s, 64); err != nil {
				continue
			}
		}
		switch media {
		case "text/plain", "text/*":
			text = max(text, q)
		case "application/json", "application/*":
			json = max(json, q)
		}
	}
	return text > json
}
