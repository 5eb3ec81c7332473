package loadouts

// form is the shape of a value.
type form int

const (
	scalar     form = iota // one text or number
	textList               // texts, each once
	objectList             // objects of one shape
	object                 // named fields
	textMap                // free keys, text values
)

// rule is what one place of a document must look like.
type rule struct {
	form form
	// check says which rule a text breaks, or nothing. For lists and maps of
	// text it is asked of each item.
	check func(string) string
	// key does the same for the keys of a textMap.
	key func(string) string
	// fields are those of an object, or of each object of a list.
	fields map[string]rule
	// required fields must stand in every document (not only after merging).
	required []string
	// later are published names this version has no support for.
	later []string
	// most bounds the items of a list or map, before and after merging.
	most int
	// private values never appear in messages.
	private bool
	// yesNo is true or false, without quotes.
	yesNo bool
}

// topRule is a whole document. Its top level is what loadout/v1 has
// published, as far as this version goes; image, runners, agent, workspace,
// env and lifecycle are ours.
var topRule = rule{
	form: object,
	fields: map[string]rule{
		"apiVersion":      {check: oneOf(APIVersion)},
		"kind":            {check: oneOf(string(KindLoadout), string(KindLayer))},
		"metadata":        metadataRule,
		"extends":         {form: textList, check: length(1, 256), most: maxExtends},
		"resources":       resourcesRule,
		"runtime_options": runtimeRule,
		"image":           {check: isImage},
		"network":         networkRule,
		"runners":         {form: textList, check: oneOf(RunnerEcho, RunnerAdapterCommand), most: 16},
		"agent":           agentRule,
		"workspace":       workspaceRule,
		"env":             envRule,
		"readiness":       readinessRule,
		"lifecycle":       lifecycleRule,
	},
	required: []string{"apiVersion", "kind", "metadata"},
	later: []string{
		"packages", "runtimes", "ai_tools", "credential_refs", "aiwg",
		"docker", "startup_profile", "write_files", "runcmd",
	},
}

var metadataRule = rule{
	form: object,
	fields: map[string]rule{
		"name":        {check: isName},
		"description": {check: length(0, 1024)},
		"labels":      {form: textMap, key: isLabel, check: isLabelValue, most: 64},
	},
	required: []string{"name"},
}

var resourcesRule = rule{
	form: object,
	fields: map[string]rule{
		"cpus":   {check: number(1, 256)},
		"memory": {check: size(64*MiB, 4096*1024*MiB)},
		"disk":   {check: size(16*MiB, 64*1024*1024*MiB)},
	},
	later: []string{"gpu"},
}

var runtimeRule = rule{
	form: object,
	fields: map[string]rule{
		"kind":                  {check: isRuntimeKind},
		"provider":              {check: isProvider},
		"required_capabilities": {form: textList, check: isCapability, most: 128},
		"excluded_capabilities": {form: textList, check: isCapability, most: 128},
	},
	later: []string{"launch_strategy", "constraints"},
}

var networkRule = rule{
	form:   object,
	fields: map[string]rule{"mode": {check: isNetworkMode}},
	later:  []string{"allowlist"},
}

var agentRule = rule{
	form: object,
	fields: map[string]rule{
		"name":        {check: length(1, 128)},
		"description": {check: length(1, 2048)},
		"version":     {check: length(1, 64)},
		"user":        {check: isUser},
		"skills": {
			form: objectList,
			most: 64,
			fields: map[string]rule{
				"id":          {check: isSkillID},
				"name":        {check: length(1, 128)},
				"description": {check: length(1, 2048)},
				"tags":        {form: textList, check: length(1, 64), most: 32},
				"examples":    {form: textList, check: length(1, 1024), most: 32},
			},
			required: []string{"id", "name", "description"},
		},
	},
}

var workspaceRule = rule{
	form: object,
	fields: map[string]rule{
		"path": {check: isWorkspacePath},
		"user": {check: isUser},
	},
}

var envRule = rule{form: textMap, key: isEnvName, check: isEnvValue, most: 256, private: true}

var readinessRule = rule{
	form:   object,
	fields: map[string]rule{"setup_timeout_seconds": {check: number(1, 3600)}},
}

// maxLifeSeconds bounds every time of a life, at about ten years.
const maxLifeSeconds = 10 * 366 * 24 * 3600

var lifecycleRule = rule{
	form: object,
	fields: map[string]rule{
		"ttl_seconds": {check: number(10, maxLifeSeconds)},
		"idle": {
			form: object,
			fields: map[string]rule{
				"timeout_seconds": {check: number(1, maxLifeSeconds)},
				"action":          {check: oneOf(string(IdlePause), string(IdleStop))},
				"wake":            {yesNo: true, check: oneOf("true", "false")},
			},
		},
	},
}
