package management

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"agentic-sandbox.aiwg.io/sandbox/controlplane/fleet"
)

const (
	defaultPage = 200
	maxPage     = 1000
	maxCursor   = 256
	maxShown    = 128
)

// decode reads one JSON value and nothing after it into v. Members that
// nobody knows are refused: a misspelt one would be ignored in silence.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	if err := wantMedia(r, "application/json"); err != nil {
		return err
	}
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return malformed(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return callerFault(codeMalformed, "send one JSON object", "the body goes on after its first JSON value")
	}
	return nil
}

func malformed(err error) error {
	var (
		tooLarge *http.MaxBytesError
		wrong    *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &tooLarge):
		return err
	case errors.Is(err, io.EOF):
		return callerFault(codeMalformed, "send one JSON object", "the body is empty")
	case errors.As(err, &wrong):
		return invalid{{Field: wrong.Field, Code: "field.type",
			Message: "want " + wrong.Type.String() + ", found " + wrong.Value}}.or(codeMalformed)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return invalid{{Field: strings.Trim(name, `"`), Code: "field.unknown",
			Message: "there is no such member"}}.or(codeMalformed)
	}
	return callerFault(codeMalformed, "", "cannot read body: %v", err)
}

func wantMedia(r *http.Request, want string) error {
	got, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || got != want {
		return callerFault(codeMediaType, "send the header Content-Type: "+want,
			"the body is of type %q", clip(r.Header.Get("Content-Type")))
	}
	return nil
}

// cursor is the key of the last item of the page before; empty for the first.
func cursor(s *string) (string, error) {
	if s == nil || *s == "" {
		return "", nil
	}
	key, err := base64.RawURLEncoding.DecodeString(*s)
	if err != nil || len(*s) > maxCursor {
		return "", invalid{{Field: "cursor", Code: "parameter.form",
			Message: "want next_cursor of an earlier answer"}}.or(codeInvalidParameter)
	}
	return string(key), nil
}

func pageSize(limit *int) (int, error) {
	if limit == nil {
		return defaultPage, nil
	}
	if *limit < 1 || *limit > maxPage {
		return 0, invalid{{Field: "limit", Code: "parameter.range",
			Message: "want a number from 1 to 1000"}}.or(codeInvalidParameter)
	}
	return *limit, nil
}

// cut takes the first items and the cursor of what follows, if any does.
func cut[T any](items []T, limit int, key func(T) string) (page []T, next string) {
	if len(items) <= limit {
		return items, ""
	}
	page = items[:limit]
	return page, base64.RawURLEncoding.EncodeToString([]byte(key(page[limit-1])))
}

// clip bounds what is repeated of a request.
func clip(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return s[:maxShown] + "…"
}

var _ fleet.FieldErrors = invalid(nil)
