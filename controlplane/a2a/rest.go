package a2a

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"

	"github.com/gorilla/mux"
)

// restOperation is one operation of HTTP+JSON.
type restOperation func(c *call, r *http.Request) (any, *fault)

// rest serves an operation that answers with one JSON value.
func (s *surface) rest(op restOperation) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, f := s.begin(w, r)
		if f != nil {
			s.refuse(w, r, f)
			return
		}
		defer c.leave()
		r.Body = http.MaxBytesReader(w, r.Body, s.cfg.Limits.Body)
		v, f := op(c, r)
		if f != nil {
			s.refuse(w, r, f)
			return
		}
		s.answer(w, r, responseType(r), http.StatusOK, c.shape(httpJSON, v))
	}
}

// body reads the JSON of a request. required is false where an empty body
// says as much as {}.
func (s *surface) body(r *http.Request, required bool) (json.RawMessage, *fault) {
	raw, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, errTooLarge(s.cfg.Limits.Body)
	case err != nil:
		return nil, errBroken(rpcInvalid, "the request could not be read to its end")
	case len(raw) == 0 && !required:
		return emptyObject(), nil
	}
	if f := checkContentType(r); f != nil {
		return nil, f
	}
	switch rule := checkJSON(raw); rule {
	case "":
	case ruleNumber:
		return nil, errNumber(raw)
	default:
		return nil, errBroken(rpcParse, "the request "+rule)
	}
	return raw, nil
}

func checkContentType(r *http.Request) *fault {
	ct := r.Header.Get("Content-Type")
	if ct == "" {
		return nil
	}
	media, _, err := mime.ParseMediaType(ct)
	if err != nil || media != "application/json" && media != mediaA2A {
		return errContentType("content type " + clip(ct) + " is not taken; send Content-Type: application/json")
	}
	return nil
}

func restSend(c *call, r *http.Request) (any, *fault) {
	raw, f := c.body(r, true)
	if f != nil {
		return nil, f
	}
	return c.sendRaw(r.Context(), raw)
}

func restGet(c *call, r *http.Request) (any, *fault) {
	d := &decoder{}
	history := queryObject(d, r, nil, []string{"historyLength"}).count("historyLength")
	if f := d.fault(); f != nil {
		return nil, f
	}
	return c.get(r.Context(), mux.Vars(r)["task"], history)
}

func restCancel(c *call, r *http.Request) (any, *fault) {
	raw, f := c.body(r, false)
	if f != nil {
		return nil, f
	}
	d := &decoder{}
	d.object("body", raw).metadata() // nothing in it is used, but it must be one
	if f := d.fault(); f != nil {
		return nil, f
	}
	return c.cancel(r.Context(), mux.Vars(r)["task"])
}

func restList(c *call, r *http.Request) (any, *fault) {
	d := &decoder{}
	o := queryObject(d, r, []string{"contextId", "status", "statusTimestampAfter", "lastUpdatedAfter", "pageToken"},
		[]string{"historyLength", "pageSize", "includeArtifacts"})
	if c.version == v03 {
		list03(o)
	}
	req, f := decodeList(o)
	if f != nil {
		return nil, f
	}
	return c.list(r.Context(), req)
}

// queryObject makes of a query what the other binding has as an object: texts
// become strings, values are taken as the JSON they look like.
func queryObject(d *decoder, r *http.Request, texts, values []string) object {
	o := object{d: d, m: map[string]json.RawMessage{}}
	query := r.URL.Query()
	put := func(name string, encode func(string) string) {
		for _, key := range []string{snake(name), name} { // if both are there, get refuses them
			if v := query.Get(key); v != "" {
				o.m[key] = json.RawMessage(encode(v))
			}
		}
	}
	for _, name := range texts {
		put(name, quote)
	}
	for _, name := range values {
		put(name, func(s string) string {
			if json.Valid([]byte(s)) {
				return s
			}
			return quote(s)
		})
	}
	return o
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil { // not possible for a string
		return strconv.QuoteToASCII(s)
	}
	return string(b)
}
